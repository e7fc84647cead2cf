//! Why this host cannot be a part of a verbs cluster, each with what to do about it. This file knows no shard and no
//! chain: what fails later, while chains are in flight, is a [`crate::verbs::FabricError`].

use std::io;

use thiserror::Error;

use crate::control::remote::ConnectError;
use crate::mapped::region::RegionError;
use crate::memory::ClusterError;
use crate::service::ServiceError;

/// Why an RDMA device could not be opened or used.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum VerbsError {
    /// Neither the kernel nor libibverbs knows of one.
    #[error(
        "this host has no RDMA device ({cause}): load the driver of its NIC (modprobe mlx5_ib, irdma, bnxt_re ...); \
         without RDMA hardware: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0"
    )]
    NoDevice { cause: io::Error },
    /// The device that was asked for does not exist.
    #[error("there is no RDMA device named {name:?}; this host has: {}", .present.join(", "))]
    NoSuchDevice { name: String, present: Vec<String> },
    /// The kernel has the device, libibverbs does not.
    #[error(
        "the kernel has the RDMA device {}, but libibverbs has no driver for it: install the user-space providers \
         (Debian: apt install ibverbs-providers; Fedora: dnf install libibverbs)",
        .devices.join(", ")
    )]
    NoProvider { devices: Vec<String> },
    /// The device exists and cannot be opened.
    #[error(
        "cannot open the RDMA device {device}: {cause}; this user must be allowed to open /dev/infiniband/uverbs* \
         (in a container: pass the device in)"
    )]
    Open { device: String, cause: io::Error },
    /// No port can be used.
    #[error("{}", no_active_port(.device, *.port))]
    NoActivePort { device: String, port: Option<u8> },
    /// The device has fewer ports.
    #[error("the RDMA device {device} has no port {port}: its ports are 1 to {ports}")]
    NoSuchPort { device: String, port: u8, ports: u8 },
    /// The port has no address.
    #[error(
        "port {port} of the RDMA device {device} has no address (GID) yet: give its network interface an IP address"
    )]
    NoGid { device: String, port: u8 },
    /// There is no address at that place.
    #[error(
        "port {port} of the RDMA device {device} has no GID at index {index}; it has {}: leave the choice to farwood, \
         or look at show_gids or /sys/class/infiniband/{device}/ports/{port}/gids",
        list(.present)
    )]
    NoSuchGid { device: String, port: u8, index: u8, present: Vec<u8> },
    /// Locks are words that compute nodes change with atomics.
    #[error(
        "the RDMA device {device} has no atomics (CAS and FAA), which farwood's locks need: use another device, or \
         enable them in the NIC's firmware settings"
    )]
    NoAtomics { device: String },
    /// Too little memory may be locked.
    #[error("{}", memlock(*.bytes, *.limit))]
    Memlock { bytes: u64, limit: u64 },
    /// The device did not take memory.
    #[error(
        "the RDMA device refused to register {bytes} bytes of memory: {cause}; give it less memory, or see what limits \
         it (max_mr_size of ibv_devinfo -v, dmesg)"
    )]
    Registration { bytes: u64, cause: io::Error },
    /// The device refused something else.
    #[error(
        "the RDMA device refused to {action}: {cause}; see ibv_devinfo -v for its limits, ulimit -l, and dmesg"
    )]
    Refused { action: &'static str, cause: io::Error },
    /// The device does not move data to itself.
    #[error(
        "the RDMA device {device} does not deliver to itself ({cause}): is its link up (rdma link), and are UDP port \
         4791 and its IP address open in the firewall?"
    )]
    Loopback { device: String, cause: String },
    /// The control services could not be connected.
    #[error(transparent)]
    Control(#[from] ConnectError),
    /// A memory server's region could not be had.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A memory server's region cannot be divided as asked.
    #[error(transparent)]
    Parts(#[from] ClusterError),
    /// A control service could not be started.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// The system has no random numbers.
    #[error("cannot read /dev/urandom: {0}; a container must have it")]
    Random(io::Error),
    /// A memory server did not connect its queue pair.
    #[error("memory server {server} does not connect a queue pair: {cause}")]
    Connect { server: u16, cause: String },
}

impl VerbsError {
    /// Reports a call that failed with `cause`, from errno.
    pub(super) fn refused(action: &'static str, cause: io::Error) -> Self {
        VerbsError::Refused { action, cause }
    }

    /// Reports a registration of `bytes` bytes that failed with `cause`.
    pub(super) fn registration(bytes: u64, cause: io::Error, memlock_limit: Option<u64>) -> Self {
        match (cause.raw_os_error(), memlock_limit) {
            (Some(libc::ENOMEM), Some(limit)) => VerbsError::Memlock { bytes, limit },
            _ => VerbsError::Registration { bytes, cause },
        }
    }
}

fn no_active_port(device: &str, port: Option<u8>) -> String {
    let which = port.map_or("no active port".into(), |port| format!("no link on port {port}"));
    format!(
        "the RDMA device {device} has {which}: plug its cable in, set its network interface up (ip link set dev eth0 \
         up), and see the state with rdma link"
    )
}

fn memlock(bytes: u64, limit: u64) -> String {
    format!(
        "cannot lock {bytes} bytes of memory for the RDMA device: the limit is {limit} bytes; raise it (ulimit -l \
         unlimited, or * - memlock unlimited in /etc/security/limits.conf; a systemd service: LimitMEMLOCK=infinity)"
    )
}

fn list(indexes: &[u8]) -> String {
    if indexes.is_empty() {
        return "none".into();
    }
    indexes.iter().map(u8::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_lockable_memory_is_told_apart() {
        let refused = |errno, limit| {
            let cause = io::Error::from_raw_os_error(errno);
            VerbsError::registration(4096, cause, limit).to_string()
        };
        assert!(refused(libc::ENOMEM, Some(65536)).contains("LimitMEMLOCK=infinity"));
        assert!(refused(libc::ENOMEM, Some(65536)).contains("65536 bytes"));
        assert!(refused(libc::ENOMEM, None).contains("refused to register 4096 bytes"));
        assert!(refused(libc::EINVAL, Some(65536)).contains("refused to register 4096 bytes"));
    }

    #[test]
    fn messages_name_what_there_is() {
        let device = || "rxe0".to_string();
        let present = VerbsError::NoSuchGid { device: device(), port: 1, index: 9, present: vec![0, 1] };
        assert!(present.to_string().contains("it has 0, 1:"), "{present}");
        let none = VerbsError::NoSuchDevice { name: "mlx5_7".into(), present: vec![device(), "rxe1".into()] };
        assert!(none.to_string().ends_with("this host has: rxe0, rxe1"), "{none}");
        let port = VerbsError::NoActivePort { device: device(), port: Some(2) };
        assert!(port.to_string().contains("no link on port 2"), "{port}");
    }
}
