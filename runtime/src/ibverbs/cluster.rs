//! A cluster of memory servers that are reached by RDMA, as a compute node sees it.

use std::sync::Arc;

use super::context::{Port, VerbsConfig};
use super::device::VerbsDevice;
use super::error::VerbsError;
use super::watch::Watch;
use crate::control::remote::{ConnectConfig, RemoteControl};
use crate::control::wire::OfferKind;
use crate::control::{Control, ControlError, ServerAddress};
use crate::fabric::{Admission, Exchange, Fabric, Seat};
use crate::node::NodeError;

/// Memory servers behind a port of this host's RDMA device.
pub struct VerbsCluster {
    control: Arc<dyn Control>,
    exchange: Arc<dyn Exchange>,
    admission: Arc<dyn Admission>,
    remote: Option<Arc<RemoteControl>>,
    watch: Arc<Watch>,
    port: Arc<Port>,
}

impl VerbsCluster {
    /// Connects to the control services at these addresses, `host:port` each, and opens the device. Blocks. Everybody
    /// lists the same servers in the same order: it makes the servers' ids.
    ///
    /// # Errors
    /// If one of the servers is not there, or there is no device, port or address that can be used.
    pub fn connect<S: AsRef<str>>(addresses: &[S], config: &VerbsConfig) -> Result<Arc<Self>, VerbsError> {
        Self::connect_with(addresses, config, ConnectConfig::default())
    }

    /// [`VerbsCluster::connect`] with another name or patience.
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
        let (watch, remote) = (Watch::start()?, Some(remote));
        Ok(Arc::new(VerbsCluster { control, exchange, admission, remote, watch, port }))
    }

    /// The servers' control services, for what only they can tell, if they were connected by sockets.
    pub fn remote(&self) -> Option<&Arc<RemoteControl>> {
        self.remote.as_ref()
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
            watch: Watch::start()?,
            port,
        }))
    }
}

impl Fabric for VerbsCluster {
    type Device = VerbsDevice;

    fn control(self: &Arc<Self>) -> Arc<dyn Control> {
        Arc::clone(&self.control)
    }

    fn admit(&self) -> Result<u16, ControlError> {
        self.admission.admit()
    }

    fn ended(&self) {
        self.admission.ended();
    }

    fn device(&self, seat: &Seat) -> Result<VerbsDevice, NodeError> {
        let exchange = Arc::clone(&self.exchange);
        VerbsDevice::new(&self.port, exchange, self.control.servers(), &self.watch, seat)
            .map_err(|error| NodeError::Device(error.to_string()))
    }
}
