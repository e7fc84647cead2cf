//! A cluster of memory servers that are reached by RDMA, as a compute node sees it.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};

use super::context::{Port, VerbsConfig};
use super::cq_event_thread::CqEventThread;
use super::device::VerbsDevice;
use super::error::VerbsError;
use crate::control::queue_pair::{Admission, Exchange};
use crate::control::remote::{ConnectConfig, RemoteControl};
use crate::control::wire::OfferKind;
use crate::control::{Control, ControlError, ServerAddress};
use crate::epoch::NodeEpochs;
use crate::fabric::{DeviceContext, DeviceError, Fabric};
use crate::message::ShardId;

/// Memory servers behind a port of this host's RDMA device.
pub struct VerbsCluster {
    control: Arc<dyn Control>,
    exchange: Arc<dyn Exchange>,
    admission: Arc<dyn Admission>,
    remote: Option<Arc<RemoteControl>>,
    events: Arc<CqEventThread>,
    port: Arc<Port>,
    numbers: Arc<ShardNumbers>,
}

impl VerbsCluster {
    /// Connects to the control services at these addresses, `host:port` each, and opens the device. Blocks. All
    /// compute nodes list the same servers in the same order: it makes the servers' ids.
    ///
    /// # Errors
    /// If one of the servers is not there, or there is no device, port or address that can be used.
    pub fn connect<S: AsRef<str>>(addresses: &[S], config: &VerbsConfig) -> Result<Arc<Self>, VerbsError> {
        Self::connect_with(addresses, config, ConnectConfig::default())
    }

    /// Connects as [`VerbsCluster::connect`] does, with another name or patience.
    ///
    /// # Errors
    /// As there.
    pub fn connect_with<S: AsRef<str>>(
        addresses: &[S],
        config: &VerbsConfig,
        connect: ConnectConfig,
    ) -> Result<Arc<Self>, VerbsError> {
        let addresses: Vec<_> =
            addresses.iter().map(|address| ServerAddress::Tcp(address.as_ref().into())).collect();
        let connect = ConnectConfig { fabric: Some(OfferKind::Verbs), ..connect };
        // The device first: without one there is nothing to connect for.
        let port = Arc::new(Port::open(config)?);
        let remote = RemoteControl::connect(&addresses, &connect)?;
        let (control, exchange, admission) = (remote.clone(), remote.clone(), remote.clone());
        let (events, remote) = (CqEventThread::start()?, Some(remote));
        Ok(Arc::new(VerbsCluster {
            control,
            exchange,
            admission,
            remote,
            events,
            port,
            numbers: Arc::default(),
        }))
    }

    /// Opens the device, for another control plane than that of sockets. `exchange` must answer without the help of
    /// the threads that shards run on: a shard waits for its first queue pairs.
    ///
    /// # Errors
    /// If there is no device, port or address that can be used.
    pub fn new(
        control: Arc<dyn Control>,
        exchange: Arc<dyn Exchange>,
        admission: Arc<dyn Admission>,
        config: &VerbsConfig,
    ) -> Result<Arc<Self>, VerbsError> {
        let port = Arc::new(Port::open(config)?);
        Ok(Arc::new(VerbsCluster {
            control,
            exchange,
            admission,
            remote: None,
            events: CqEventThread::start()?,
            port,
            numbers: Arc::default(),
        }))
    }
}

impl Fabric for VerbsCluster {
    type Device = VerbsDevice;

    fn control(self: &Arc<Self>) -> Arc<dyn Control> {
        Arc::clone(&self.control)
    }

    fn remote(&self) -> Option<&Arc<RemoteControl>> {
        self.remote.as_ref()
    }

    fn allocate_node_id(&self) -> Result<u16, ControlError> {
        self.admission.allocate_node_id()
    }

    fn release_node_id(&self, _: u16) {
        self.admission.release_node_id();
    }

    fn join_epochs(&self, node: u16, epochs: &Arc<NodeEpochs>) {
        self.admission.join_epochs(node, epochs);
    }

    fn device(&self, context: &DeviceContext) -> Result<VerbsDevice, DeviceError> {
        let exchange = Arc::clone(&self.exchange);
        let number = ShardNumbers::take(&self.numbers)
            .ok_or_else(|| DeviceError("a process has room for 65536 shards".into()))?;
        VerbsDevice::new(&self.port, exchange, self.control.servers(), &self.events, context, number)
            .map_err(|error| DeviceError(error.to_string()))
    }
}

/// Numbers that tell apart the shards of all nodes of a cluster. Its servers know a queue pair by the control
/// connection that it was asked for over, which these nodes share, and such a number: every node has a shard 0.
#[derive(Default)]
pub(super) struct ShardNumbers {
    free: Mutex<Free>,
}

struct Free {
    given_back: BTreeSet<u16>,
    unused: RangeInclusive<u16>,
}

impl Default for Free {
    fn default() -> Self {
        Free { given_back: BTreeSet::new(), unused: 0..=u16::MAX }
    }
}

/// A number that no other shard has until this is dropped.
pub(super) struct ShardNumber {
    of: Arc<ShardNumbers>,
    number: u16,
}

impl ShardNumbers {
    fn take(this: &Arc<Self>) -> Option<ShardNumber> {
        let mut free = this.free();
        let given_back = free.given_back.pop_first();
        let number = given_back.or_else(|| free.unused.next())?;
        Some(ShardNumber { of: Arc::clone(this), number })
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().expect("nothing panics while it takes a number")
    }
}

impl ShardNumber {
    /// Returns it as servers have it.
    pub(super) fn shard(&self) -> ShardId {
        ShardId(self.number)
    }
}

impl Drop for ShardNumber {
    fn drop(&mut self) {
        self.of.free().given_back.insert(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_shard_has_the_number_of_another() {
        let numbers = Arc::default();
        let mut taken: Vec<_> = (0..=u16::MAX).map(|_| ShardNumbers::take(&numbers).unwrap()).collect();
        assert!((0..=u16::MAX).eq(taken.iter().map(|taken| taken.shard().0)));
        assert!(ShardNumbers::take(&numbers).is_none());
        taken.swap_remove(70);
        taken.swap_remove(3);
        assert_eq!([3, 70].map(|_| taken_again(&numbers, &mut taken)), [3, 70]);
        assert!(ShardNumbers::take(&numbers).is_none());
    }

    fn taken_again(numbers: &Arc<ShardNumbers>, taken: &mut Vec<ShardNumber>) -> u16 {
        taken.push(ShardNumbers::take(numbers).unwrap());
        taken.last().unwrap().shard().0
    }
}
