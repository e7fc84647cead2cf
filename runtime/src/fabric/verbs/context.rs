//! Which device, port and address of this host are used, and the open device. Everything chosen here is fixed for the
//! life of a [`Port`].
//!
//! ```text
//!   Port -> Protection (pd) -> Context (open device)        an arrow is an Arc: what it points to is closed later
//! ```
//!
//! A process with registered memory may fork, as it does to run a command. From Linux 5.12 on the kernel copies pinned
//! pages for the child. Before, the first of the two that wrote to a page got a copy, so a device could go on with the
//! child's page while this process had another one: libibverbs keeps registered pages, and those of its queues, out of
//! children there (`ibv_fork_init`). So what is registered has pages of its own: a child that comes to them dies.

use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Once};

use ibverbs_sys as ffi;
use nix::errno::Errno;

use super::error::VerbsError;

/// Vendor of Soft-RoCE (`rdma_rxe`). Those of real devices are numbers from the IEEE.
const SOFT_ROCE_VENDOR: u32 = 0xff_ffff;

/// Which device, port and address to use. What is not named is chosen.
#[derive(Clone, Debug, Default)]
pub struct VerbsConfig {
    /// Name of the RDMA device, as `ibv_devices` lists it; the first one that has an active port if there is none.
    pub device: Option<String>,
    /// Number of its port, from 1; the first active one if there is none.
    pub port: Option<u8>,
    /// Index in the port's table of addresses; RoCE v2 over IPv4 if there is one, else RoCE v2 over IPv6, else any.
    pub gid_index: Option<u8>,
    /// WRITEs up to this many bytes travel inside their work request, 64 if it is not said: an entry with its version,
    /// or a word. More makes every entry of a send queue longer. A device that has room for less is taken as it is.
    pub inline_bytes: Option<u32>,
}

/// See [`VerbsConfig::inline_bytes`].
const INLINE_BYTES: u32 = 64;

/// An open device.
pub(super) struct Context {
    raw: NonNull<ffi::ibv_context>,
    name: String,
}

// SAFETY: libibverbs is thread-safe: a context may be used and closed by any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn open(device: &Listed) -> Result<Self, VerbsError> {
        let name = device.name();
        // SAFETY: the device is in a list that was not freed.
        let raw = unsafe { ffi::ibv_open_device(device.0) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Context { raw, name }),
            None => Err(VerbsError::Open { device: name, cause: io::Error::last_os_error() }),
        }
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_context {
        self.raw.as_ptr()
    }

    fn attributes(&self) -> Result<ffi::ibv_device_attr, VerbsError> {
        let mut attributes = ffi::ibv_device_attr::default();
        // SAFETY: the context is open, and the attributes are as long as libibverbs fills.
        let failed = unsafe { ffi::ibv_query_device(self.raw(), &mut attributes) };
        checked("tell its limits", failed).map(|()| attributes)
    }

    fn port_attributes(&self, port: u8) -> Result<ffi::ibv_port_attr, VerbsError> {
        let mut attributes = ffi::ibv_port_attr::default();
        // SAFETY: the context is open. The exported function fills the older, shorter form of the attributes, which is
        // the beginning of this one; the rest stays zero.
        let failed = unsafe {
            ffi::ibv_query_port(self.raw(), port, (&raw mut attributes).cast::<ffi::_compat_ibv_port_attr>())
        };
        checked("tell the state of its port", failed).map(|()| attributes)
    }

    fn gids(&self, port: u8, table: i32) -> Vec<Gid> {
        let mut gids = Vec::new();
        for index in 0..table.clamp(0, 256) as u32 {
            let mut entry = ffi::ibv_gid_entry::default();
            let bytes = size_of::<ffi::ibv_gid_entry>();
            // SAFETY: the context is open, and the entry is as long as it says. Empty places are errors.
            let failed =
                unsafe { ffi::_ibv_query_gid_ex(self.raw(), u32::from(port), index, &mut entry, 0, bytes) };
            if failed == 0 {
                // SAFETY: every bit pattern is a GID.
                let raw = unsafe { entry.gid.raw };
                gids.push(Gid { index: index as u8, raw, v2: entry.gid_type == ffi::IBV_GID_TYPE_ROCE_V2 });
            }
        }
        gids
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened in `open`; whatever was made of it holds it, so nothing is left.
        let failed = unsafe { ffi::ibv_close_device(self.raw()) };
        if failed != 0 {
            tracing::warn!(device = self.name, "cannot close the RDMA device: {}", last_error(failed));
        }
    }
}

/// A protection domain: what queue pairs and registered memory have to have in common.
pub(super) struct Protection {
    raw: NonNull<ffi::ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs is thread-safe.
unsafe impl Send for Protection {}
// SAFETY: as above.
unsafe impl Sync for Protection {}

impl Protection {
    fn new(context: Arc<Context>) -> Result<Self, VerbsError> {
        // SAFETY: the context is open.
        let raw = unsafe { ffi::ibv_alloc_pd(context.raw()) };
        let raw = non_null("make a protection domain", raw)?;
        Ok(Protection { raw, context })
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_pd {
        self.raw.as_ptr()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; queue pairs and memory regions hold it, so none is left.
        let failed = unsafe { ffi::ibv_dealloc_pd(self.raw()) };
        if failed != 0 {
            tracing::warn!("cannot free a protection domain: {}", last_error(failed));
        }
    }
}

/// Capabilities of a device and its port, as far as they matter here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Work requests in a send queue.
    pub work_requests_max: u32,
    /// Entries of a completion queue.
    pub completions_max: u32,
    /// READs and atomics that a queue pair answers at the same time.
    pub answers_max: u8,
    /// READs and atomics that a queue pair has under way at the same time.
    pub reads_max: u8,
}

/// A port of an open device, with the address by which it is reached.
pub(super) struct Port {
    protection: Arc<Protection>,
    pub number: u8,
    pub gid_index: u8,
    pub gid: [u8; 16],
    pub lid: u16,
    /// The largest payload of a packet, in bytes.
    pub mtu: u16,
    /// Set if packets are addressed by GID (Ethernet, that is RoCE), not by LID (InfiniBand).
    pub is_ethernet: bool,
    /// Set if the device keeps fences (`IBV_SEND_FENCE`). Soft-RoCE does not: in Linux 6.1 a queue pair that is used
    /// with fences is stuck for good sooner or later, after a thousand fences or so, and no timeout ends it. There the
    /// host waits instead.
    pub keeps_fences: bool,
    /// Set if atomics are atomic against WRITEs. Soft-RoCE's are not: in Linux 6.1 a CAS that does not fit stores the
    /// word that it found, under a lock that WRITEs do not take. The device that matters is the memory server's: a
    /// cluster is taken to have devices of one kind.
    pub has_atomic_writes: bool,
    /// Room for data within a work request that queue pairs are asked for, in bytes.
    pub inline_bytes: u32,
    pub limits: Limits,
}

impl Port {
    /// Opens what `config` names, or what is best of what there is.
    pub(super) fn open(config: &VerbsConfig) -> Result<Self, VerbsError> {
        allow_forks();
        let devices = Devices::list()?;
        let candidates = devices.candidates(config.device.as_deref())?;
        first_that_fits(candidates.iter().map(|device| Self::open_device(device, config)))
    }

    fn open_device(device: &Listed, config: &VerbsConfig) -> Result<Self, VerbsError> {
        let context = Arc::new(Context::open(device)?);
        let name = context.name.clone();
        let attributes = context.attributes()?;
        if attributes.atomic_cap == ffi::IBV_ATOMIC_NONE {
            return Err(VerbsError::NoAtomics { device: name });
        }
        let is_soft_roce = attributes.vendor_id == SOFT_ROCE_VENDOR;
        let (number, port) = active_port(&context, attributes.phys_port_cnt, config.port)?;
        let is_ethernet = u32::from(port.link_layer) == ffi::IBV_LINK_LAYER_ETHERNET;
        let gids = context.gids(number, port.gid_tbl_len);
        let gid = match config.gid_index {
            None => choose_gid(&gids, is_ethernet).ok_or(VerbsError::NoGid { device: name, port: number })?,
            Some(index) => *gids.iter().find(|gid| gid.index == index).ok_or_else(|| {
                let present = gids.iter().map(|gid| gid.index).collect();
                VerbsError::NoSuchGid { device: name, port: number, index, present }
            })?,
        };
        Ok(Port {
            protection: Arc::new(Protection::new(context)?),
            number,
            gid_index: gid.index,
            gid: gid.raw,
            lid: port.lid,
            mtu: mtu_bytes(port.active_mtu),
            is_ethernet,
            inline_bytes: config.inline_bytes.unwrap_or(INLINE_BYTES),
            keeps_fences: !is_soft_roce,
            has_atomic_writes: !is_soft_roce,
            limits: Limits {
                work_requests_max: attributes.max_qp_wr.max(0) as u32,
                completions_max: attributes.max_cqe.max(0) as u32,
                answers_max: attributes.max_qp_rd_atom.clamp(1, 255) as u8,
                reads_max: attributes.max_qp_init_rd_atom.clamp(1, 255) as u8,
            },
        })
    }

    pub(super) fn protection(&self) -> &Arc<Protection> {
        &self.protection
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        self.protection.context()
    }

    /// Returns the device's name.
    pub(super) fn device(&self) -> &str {
        &self.context().name
    }
}

/// Sees to it that this process can fork (see the file's head). Does nothing where the kernel does.
fn allow_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: no pointers; once, and before this crate registers anything.
        let failed = unsafe { ffi::ibv_fork_init() };
        if failed != 0 {
            let cause = last_error(failed);
            tracing::warn!(
                name: "verbs.fork", %cause,
                "this process must not fork while it uses RDMA: libibverbs was in use before and did not prepare for \
                 it, and this kernel is older than 5.12; call ibv_fork_init first, or set IBV_FORK_SAFE=1"
            );
        }
    });
}

/// Passes over devices that cannot be used as they are; what is wrong with the first of them is told if none can.
fn first_that_fits<T>(opened: impl Iterator<Item = Result<T, VerbsError>>) -> Result<T, VerbsError> {
    use VerbsError::{NoActivePort, NoAtomics, NoGid, Open};
    let mut first = None;
    for opened in opened {
        match opened {
            Err(error @ (NoActivePort { .. } | NoAtomics { .. } | NoGid { .. } | Open { .. })) => {
                first.get_or_insert(error);
            }
            opened => return opened,
        }
    }
    Err(first.expect("there is a candidate at least"))
}

fn active_port(
    context: &Context,
    ports: u8,
    wanted: Option<u8>,
) -> Result<(u8, ffi::ibv_port_attr), VerbsError> {
    let numbers = match wanted {
        Some(port) if port == 0 || port > ports => {
            return Err(VerbsError::NoSuchPort { device: context.name.clone(), port, ports });
        }
        Some(port) => port..=port,
        None => 1..=ports,
    };
    for number in numbers {
        let attributes = context.port_attributes(number)?;
        if attributes.state == ffi::ibv_port_state::IBV_PORT_ACTIVE {
            return Ok((number, attributes));
        }
    }
    Err(VerbsError::NoActivePort { device: context.name.clone(), port: wanted })
}

/// An entry of a port's table of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gid {
    index: u8,
    raw: [u8; 16],
    /// Set if it stands for RoCE v2, which is routed over IP.
    v2: bool,
}

/// Chooses the address: on Ethernet RoCE v2 over IPv4, then over a global IPv6 address, then over a link-local one,
/// then RoCE v1; on InfiniBand the first.
fn choose_gid(gids: &[Gid], is_ethernet: bool) -> Option<Gid> {
    let used = gids.iter().filter(|gid| gid.raw != [0; 16]);
    let rank = |gid: &Gid| match gid.raw {
        _ if !is_ethernet => 0,
        _ if !gid.v2 => 3,
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..] => 0,
        [0xfe, 0x80, ..] => 2,
        _ => 1,
    };
    used.min_by_key(|gid| (rank(gid), gid.index)).copied()
}

fn mtu_bytes(mtu: ffi::ibv_mtu) -> u16 {
    128 << mtu.clamp(ffi::IBV_MTU_256, ffi::IBV_MTU_4096)
}

/// The devices that libibverbs knows of, at least one.
struct Devices {
    list: NonNull<*mut ffi::ibv_device>,
    count: usize,
}

/// A device of the list, while it is not freed.
struct Listed<'a>(*mut ffi::ibv_device, std::marker::PhantomData<&'a Devices>);

impl Listed<'_> {
    fn name(&self) -> String {
        // SAFETY: the device is in a list that was not freed; its name is a string that lives as long.
        unsafe { CStr::from_ptr(ffi::ibv_get_device_name(self.0)) }.to_string_lossy().into_owned()
    }
}

impl Devices {
    fn list() -> Result<Self, VerbsError> {
        let mut count = 0;
        // SAFETY: `count` is where the length of the list goes.
        let list = unsafe { ffi::ibv_get_device_list(&mut count) };
        let Some(list) = NonNull::new(list) else { return Err(none(io::Error::last_os_error())) };
        let devices = Devices { list, count: count.max(0) as usize };
        if devices.count == 0 {
            return Err(none(Errno::ENODEV.into()));
        }
        Ok(devices)
    }

    fn all(&self) -> impl Iterator<Item = Listed<'_>> {
        // SAFETY: the list has `count` entries and is freed when `self` is dropped.
        let list = unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.count) };
        list.iter().map(|&device| Listed(device, std::marker::PhantomData))
    }

    fn candidates(&self, name: Option<&str>) -> Result<Vec<Listed<'_>>, VerbsError> {
        let Some(name) = name else { return Ok(self.all().collect()) };
        let named: Vec<Listed> = self.all().filter(|device| device.name() == name).collect();
        if !named.is_empty() {
            return Ok(named);
        }
        if kernel_devices().iter().any(|device| device == name) {
            return Err(VerbsError::NoProvider { devices: vec![name.into()] });
        }
        let present = self.all().map(|device| device.name()).collect();
        Err(VerbsError::NoSuchDevice { name: name.into(), present })
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // SAFETY: allocated by `ibv_get_device_list`. Opened devices stay open.
        unsafe { ffi::ibv_free_device_list(self.list.as_ptr()) }
    }
}

/// Explains that libibverbs has no device: the kernel has none, or its driver has no counterpart in user space.
fn none(cause: io::Error) -> VerbsError {
    let devices = kernel_devices();
    if devices.is_empty() { VerbsError::NoDevice { cause } } else { VerbsError::NoProvider { devices } }
}

fn kernel_devices() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Makes an error of what libibverbs returned instead of 0: errno as such, or -1 and errno where errno is kept.
pub(super) fn last_error(returned: i32) -> io::Error {
    if returned > 0 { io::Error::from_raw_os_error(returned) } else { io::Error::last_os_error() }
}

pub(super) fn checked(action: &'static str, returned: i32) -> Result<(), VerbsError> {
    if returned == 0 { Ok(()) } else { Err(VerbsError::refused(action, last_error(returned))) }
}

pub(super) fn non_null<T>(action: &'static str, raw: *mut T) -> Result<NonNull<T>, VerbsError> {
    NonNull::new(raw).ok_or_else(|| VerbsError::refused(action, io::Error::last_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, v2: bool, head: &[u8]) -> Gid {
        let mut raw = [7; 16];
        raw[..head.len()].copy_from_slice(head);
        Gid { index, raw, v2 }
    }

    const V4: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

    #[test]
    fn prefers_roce_v2_over_ipv4_then_global_ipv6() {
        let all = [
            gid(0, false, &V4),
            gid(1, true, &[0xfe, 0x80]),
            gid(2, true, &[0x20, 0x01]),
            gid(3, true, &V4),
            gid(4, true, &V4),
        ];
        let choice = |gids: &[Gid]| choose_gid(gids, true).map(|gid| gid.index);
        assert_eq!(choice(&all), Some(3));
        assert_eq!(choice(&all[..3]), Some(2));
        assert_eq!(choice(&all[..2]), Some(1));
        assert_eq!(choice(&all[..1]), Some(0));
        assert_eq!(choice(&[]), None);
        assert_eq!(choice(&[gid(0, true, &[0; 16]), gid(5, false, &V4)]), Some(5), "an empty place is none");
        assert_eq!(choose_gid(&all, false).map(|gid| gid.index), Some(0), "InfiniBand has one kind");
    }

    #[test]
    fn passes_over_devices_that_do_not_fit() {
        let device = |name: &str| name.to_string();
        let down = || Err(VerbsError::NoActivePort { device: device("a"), port: None });
        let bare = || Err(VerbsError::NoGid { device: device("b"), port: 1 });
        let weak = || Err(VerbsError::NoAtomics { device: device("c") });
        assert_eq!(first_that_fits([weak(), bare(), down(), Ok(7), Ok(8)].into_iter()).ok(), Some(7));
        let none = first_that_fits::<u8>([bare(), weak(), down()].into_iter());
        assert!(matches!(none, Err(VerbsError::NoGid { device, port: 1 }) if device == "b"));
        let wrong = Err(VerbsError::NoSuchPort { device: device("d"), port: 9, ports: 1 });
        let told = first_that_fits([weak(), wrong, Ok(7)].into_iter());
        assert!(matches!(told, Err(VerbsError::NoSuchPort { .. })), "a wrong choice is told");
    }

    #[test]
    fn knows_the_sizes_of_packets() {
        let sizes =
            [ffi::IBV_MTU_256, ffi::IBV_MTU_512, ffi::IBV_MTU_1024, ffi::IBV_MTU_2048, ffi::IBV_MTU_4096];
        assert_eq!(sizes.map(mtu_bytes), [256, 512, 1024, 2048, 4096]);
    }
}
