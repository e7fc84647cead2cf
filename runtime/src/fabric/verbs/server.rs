//! A memory server whose region compute nodes of other hosts reach by RDMA: region, responder and control service put
//! together.

use std::path::PathBuf;
use std::sync::Arc;

use super::context::VerbsConfig;
use super::error::VerbsError;
use super::responder::VerbsResponder;
use crate::control::ServerUsage;
use crate::control::queue_pair::Responder;
use crate::control::wire::{ConnectedNode, Offer};
use crate::mapped::line::LineMode;
use crate::mapped::region::{HugePages, Region, RegionConfig};
use crate::memory::{MemoryServer, ServerParts};
use crate::service::{ListenAt, Served, Service, ServiceConfig, ServiceTimes, random_instance};

/// Where regions on reserved huge pages are.
const HUGE_FOLDER: &str = "/dev/hugepages";

/// Configuration of a memory server on the verbs fabric.
#[derive(Clone, Debug)]
pub struct VerbsServerConfig {
    /// Where the control service listens: `address:port`.
    pub listen: String,
    /// Bytes of its region, all of which are locked.
    pub memory_bytes: u64,
    /// Parts that the region is divided into.
    pub parts: ServerParts,
    /// Set if the region has to be on reserved huge pages (hugetlbfs).
    pub reserved_huge_pages: bool,
    /// Device, port and address.
    pub verbs: VerbsConfig,
    /// When its control service loses its patience.
    pub times: ServiceTimes,
}

impl VerbsServerConfig {
    /// Makes the configuration of a server with the usual parts, on the device that is chosen by itself.
    pub fn new(listen: impl Into<String>, memory_bytes: u64) -> Self {
        VerbsServerConfig {
            listen: listen.into(),
            memory_bytes,
            parts: ServerParts::default(),
            reserved_huge_pages: false,
            verbs: VerbsConfig::default(),
            times: ServiceTimes::default(),
        }
    }
}

/// A memory server that compute nodes can connect to. Dropping it ends the service.
pub struct VerbsServer {
    service: Service,
    address: String,
}

impl VerbsServer {
    /// Takes and registers the memory and starts the control service.
    ///
    /// # Errors
    /// If the memory, the device or the address cannot be had.
    pub fn start(config: &VerbsServerConfig) -> Result<Self, VerbsError> {
        let VerbsServerConfig { listen, memory_bytes, parts, reserved_huge_pages, verbs, times } = config;
        parts.check(*memory_bytes)?;
        let instance = random_instance().map_err(VerbsError::Random)?;
        // NICs keep lines whole, and no CPU takes part.
        let line_mode = LineMode::Plain;
        let region = if *reserved_huge_pages {
            let file = format!("{HUGE_FOLDER}/farwood-verbs-{}", std::process::id());
            let region = RegionConfig::new(*memory_bytes, instance);
            let region = RegionConfig { line_mode, huge_pages: HugePages::Reserved, ..region };
            Region::create(&PathBuf::from(file), &region)?
        } else {
            Region::anonymous(*memory_bytes, line_mode)?
        };
        let region = Arc::new(region);
        let responder: Arc<dyn Responder> = VerbsResponder::new(Arc::clone(&region), verbs)?;
        let memory = MemoryServer::new(region, *parts)?;
        let served = Served { memory, instance, offer: Offer::Verbs, responder: Some(responder) };
        let listeners = vec![ListenAt::Tcp(listen.clone())];
        let service =
            Service::start(ServiceConfig { times: *times, ..ServiceConfig::new(served, listeners) })?;
        let address = service.addresses()[0].to_string();
        Ok(VerbsServer { service, address })
    }

    /// Returns where the control service listens; a port that was 0 is the one that the system chose.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns what the server holds.
    pub fn usage(&self) -> ServerUsage {
        self.service.usage()
    }

    /// Lists the compute nodes that are connected.
    pub fn nodes(&self) -> Vec<ConnectedNode> {
        self.service.nodes()
    }
}
