//! Costs of simulated NICs, machines and cores: named profiles, and where each figure comes from.
//!
//! All of them are calibrated from micro-measurements only, never from a result of an index: so what an index does in
//! the simulation is a prediction. SH is Sherman (SIGMOD 2022), SM is SMART (OSDI 2023), CH is CHIME (SOSP 2024).
//!
//! | parameter | ConnectX-5 | ConnectX-6 | from |
//! |---|---|---|---|
//! | `link_ps_per_byte` | 80 | 80 | 100 Gbps (SH 5.1.1) |
//! | `header_bytes`, `request_bytes` | 40, 16 | same | RoCE/InfiniBand headers; RETH of requests |
//! | `requester_ps` | 13,000 | 13,000 | 77 Mops as requester (estimate, fits SH figure 3) |
//! | `read_ps` | 14,900 | 22,200 | 67 Mops as responder; 45 Mops (SM figure 3) |
//! | `write_ps` | 12,000 | 12,000 | 83 Mops as responder (estimate, fits SH figure 3) |
//! | `atomic_ps` | 14,900 | 14,900 | 67 Mops as responder (estimate) |
//! | `pcie_ps_per_byte` | 71.4 | 71.4 | 14 GB/s, PCIe 3.0 x16, each way |
//! | `pcie_read_ns`, `pcie_write_ns` | 500, 200 | same | assumed |
//! | `wire_ns` | 560 | 560 | a WRITE of 8 B takes 990 one way: less 200, 13, link 5, 12, DMA 200 |
//! | `loopback_ns` | 200 | 200 | assumed: inside the NIC, no cable and no switch |
//! | `cas_success_ns` | 490 | 490 | 2.04 Mops on one address in host memory |
//! | `cas_failure_ns` | 290 | 290 | no write-back |
//! | `on_chip_ns` | 116 | 116 | 8.65 Mops on one address on the chip |
//! | `atomic_buckets` | 4096 | 4096 | by the 12 low bits of the address (SH 3.2.2) |
//! | `responder_slots` | 80 | 80 | fits SH figure 16 |
//! | `device_bytes` | 256 KiB | 128 KiB | SH 4.3; CH |
//! | `inline_bytes` | 64 | 64 | assumed: what fits into a doorbell's cache line beside the request |
//! | `post_ns`, `poll_ns` | 200, 116 | same | READ of 1 KiB in 2.6 us with post and poll: what the NICs leave of it |
//! | `op_ns` | 1,900 | 1,900 | 2.3 us of CPU per operation (SH table 1, read-intensive uniform), less the search |
//! | `search_ps_per_byte` | 390 | 390 | assumed, of those 2.3 us: 16 lines and 60 comparisons per KiB |
//! | `message_ns` | 300 | 300 | fits the hand-over of SH figure 16: a cache line and a look at the mailbox |
//! | `message_cpu_ns` | 40 | 40 | assumed |
//! | `write_interval_ns` | 2,000 | 2,000 | below a READ and then a WRITE through the loopback |
//!
//! Derived and checked by tests: a WRITE of 8 bytes one way, and a READ of 1 KiB with post and poll.

/// Costs of NICs, machines and cores. Times in ns, or in ps where a nanosecond is too coarse.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the table above explains the fields")]
pub struct Profile {
    pub name: &'static str,
    pub link_ps_per_byte: f64,
    pub header_bytes: u64,
    pub request_bytes: u64,
    pub requester_ps: u64,
    pub read_ps: u64,
    pub write_ps: u64,
    pub atomic_ps: u64,
    pub pcie_ps_per_byte: f64,
    pub pcie_read_ns: u64,
    pub pcie_write_ns: u64,
    pub wire_ns: u64,
    pub loopback_ns: u64,
    pub cas_success_ns: u64,
    pub cas_failure_ns: u64,
    pub on_chip_ns: u64,
    pub atomic_buckets: u64,
    pub responder_slots: usize,
    pub device_bytes: u64,
    pub inline_bytes: u64,
    pub post_ns: u64,
    pub poll_ns: u64,
    pub op_ns: u64,
    pub search_ps_per_byte: u64,
    pub message_ns: u64,
    pub message_cpu_ns: u64,
    pub write_interval_ns: u32,
}

impl Profile {
    /// Mellanox ConnectX-5 at 100 Gbps, the NIC of Sherman's and Dolphin's experiments.
    pub const CONNECTX5: Profile = Profile {
        name: "connectx5",
        link_ps_per_byte: 80.0,
        header_bytes: 40,
        request_bytes: 16,
        requester_ps: 13_000,
        read_ps: 14_900,
        write_ps: 12_000,
        atomic_ps: 14_900,
        pcie_ps_per_byte: 71.4,
        pcie_read_ns: 500,
        pcie_write_ns: 200,
        wire_ns: 560,
        loopback_ns: 200,
        cas_success_ns: 490,
        cas_failure_ns: 290,
        on_chip_ns: 116,
        atomic_buckets: 4096,
        responder_slots: 80,
        device_bytes: 256 << 10,
        inline_bytes: 64,
        post_ns: 200,
        poll_ns: 116,
        op_ns: 1_900,
        search_ps_per_byte: 390,
        message_ns: 300,
        message_cpu_ns: 40,
        write_interval_ns: 2_000,
    };

    /// Mellanox ConnectX-6 at 100 Gbps, the NIC of SMART's and CHIME's experiments.
    pub const CONNECTX6: Profile =
        Profile { name: "connectx6", read_ps: 22_200, device_bytes: 128 << 10, ..Profile::CONNECTX5 };

    /// The profiles by name.
    pub const ALL: [Profile; 2] = [Profile::CONNECTX5, Profile::CONNECTX6];

    /// Finds the profile of that name.
    ///
    /// ```
    /// # use farwood_runtime::sim::Profile;
    /// assert_eq!(Profile::named("connectx6"), Some(Profile::CONNECTX6));
    /// assert_eq!(Profile::named("carrier pigeon"), None);
    /// ```
    pub fn named(name: &str) -> Option<Profile> {
        Self::ALL.into_iter().find(|profile| profile.name == name)
    }

    /// Returns how long a message of `payload` bytes keeps a link busy.
    #[inline]
    pub(super) fn on_link_ps(&self, payload: u64, is_request: bool) -> u64 {
        let bytes = payload + self.header_bytes + if is_request { self.request_bytes } else { 0 };
        (bytes as f64 * self.link_ps_per_byte) as u64
    }

    /// Returns how long a transfer of `bytes` bytes keeps one direction of the PCIe link busy.
    #[inline]
    pub(super) fn on_pcie_ps(&self, bytes: u64) -> u64 {
        (bytes as f64 * self.pcie_ps_per_byte) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_have_names() {
        for profile in Profile::ALL {
            assert_eq!(Profile::named(profile.name), Some(profile));
        }
        assert_eq!(Profile::named("connectx7"), None);
    }
}
