//! A verbs cluster in one process: memory servers, their responders, and a control plane that is a function call. The
//! verbs themselves go through the device.
#![allow(dead_code, clippy::allow_attributes, reason = "every scenario uses a part of it")]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use farwood_runtime::epoch::NodeEpochs;
use farwood_runtime::fabric::{Admission, Answer, Endpoint, Exchange, Exchanged, Fabric, PeerId, Responder};
use farwood_runtime::ibverbs::{VerbsCluster, VerbsConfig, VerbsResponder};
use farwood_runtime::mapped::line::LineMode;
use farwood_runtime::{Cluster, ControlError, ServerId, ShardId};
use futures::channel::oneshot;

/// The other side of the exchange, for the nodes of one cluster.
pub(crate) struct Wire {
    responders: Vec<Arc<VerbsResponder>>,
    gone: [AtomicBool; 2],
    /// Number of requests to a server to connect a queue pair.
    asked: AtomicU32,
    refuses: AtomicBool,
    /// Function that spoils one answer.
    spoil: Mutex<Option<fn(&mut Answer)>>,
    /// Answers that are held back, while that is wanted.
    kept: Mutex<Option<Vec<Kept>>>,
}

type Kept = (oneshot::Sender<Result<Answer, ControlError>>, Result<Answer, ControlError>);

/// Two memory servers and a node's way to them.
pub(crate) struct Servers {
    pub memory: Arc<Cluster>,
    pub wire: Arc<Wire>,
    pub fabric: Arc<VerbsCluster>,
}

const PEER: PeerId = PeerId(7);

impl Servers {
    /// Starts two memory servers with the usual configuration.
    ///
    /// # Panics
    /// If this host has no RDMA device that works: the message says what to do.
    pub(crate) fn start() -> Self {
        Self::start_with(&VerbsConfig::default())
    }

    /// Starts two memory servers, and a node's way to them by `config`.
    ///
    /// # Panics
    /// As [`Servers::start`].
    pub(crate) fn start_with(config: &VerbsConfig) -> Self {
        let memory = crate::kit::cluster(LineMode::Plain);
        let responder = |server: usize| {
            VerbsResponder::new(Arc::clone(memory.mapped()[server].region()), config)
                .unwrap_or_else(|error| panic!("this test needs an RDMA device: {error}"))
        };
        let wire = Arc::new(Wire {
            responders: vec![responder(0), responder(1)],
            gone: Default::default(),
            asked: AtomicU32::new(0),
            refuses: AtomicBool::new(false),
            spoil: Mutex::default(),
            kept: Mutex::default(),
        });
        let fabric = connect(&memory, Arc::clone(&wire) as Arc<dyn Exchange>, config);
        Servers { memory, wire, fabric }
    }
}

fn connect(memory: &Arc<Cluster>, exchange: Arc<dyn Exchange>, config: &VerbsConfig) -> Arc<VerbsCluster> {
    let control = Fabric::control(memory);
    let admission = Arc::new(Admitting(Arc::clone(memory)));
    VerbsCluster::new(control, exchange, admission, config).unwrap()
}

struct Admitting(Arc<Cluster>);

impl Admission for Admitting {
    fn allocate_node_id(&self) -> Result<u16, ControlError> {
        self.0.allocate_node_id()
    }

    fn join_epochs(&self, node: u16, epochs: &Arc<NodeEpochs>) {
        self.0.join_epochs(node, epochs);
    }
}

impl Wire {
    /// Breaks the queue pairs to a server, as the server does when it has lost its peer.
    pub(crate) fn cut(&self, server: usize) {
        self.responders[server].forget(PEER);
    }

    /// Ends a server, as if its process had ended.
    pub(crate) fn kill(&self, server: usize) {
        self.gone[server].store(true, Ordering::Release);
        self.cut(server);
    }

    /// Makes all servers refuse queue pairs from now on.
    pub(crate) fn refuse(&self) {
        self.refuses.store(true, Ordering::Release);
    }

    /// Makes all servers connect queue pairs again.
    pub(crate) fn relent(&self) {
        self.refuses.store(false, Ordering::Release);
    }

    pub(crate) fn spoil_next(&self, spoil: fn(&mut Answer)) {
        *self.spoil.lock().unwrap() = Some(spoil);
    }

    /// Holds answers back until [`Wire::deliver`].
    pub(crate) fn keep(&self) {
        *self.kept.lock().unwrap() = Some(Vec::new());
    }

    pub(crate) fn kept(&self) -> usize {
        self.kept.lock().unwrap().as_ref().map_or(0, Vec::len)
    }

    pub(crate) fn deliver(&self) {
        for (sender, answer) in self.kept.lock().unwrap().take().into_iter().flatten() {
            sender.send(answer).unwrap();
        }
    }

    pub(crate) fn asked(&self) -> u32 {
        self.asked.load(Ordering::Acquire)
    }

    fn answer(&self, server: ServerId, shard: ShardId, own: Endpoint) -> Result<Answer, ControlError> {
        self.asked.fetch_add(1, Ordering::AcqRel);
        if self.refuses.load(Ordering::Acquire) || self.is_gone(server) {
            return Err(ControlError::NoSuchServer { server });
        }
        let mut answer = self.responders[usize::from(server.0)].answer(PEER, shard, own).unwrap();
        if let Some(spoil) = self.spoil.lock().unwrap().take() {
            spoil(&mut answer);
        }
        Ok(answer)
    }
}

impl Exchange for Wire {
    fn exchange(&self, server: ServerId, shard: ShardId, own: Endpoint) -> Exchanged {
        let (sender, receiver) = oneshot::channel();
        let answer = self.answer(server, shard, own);
        match self.kept.lock().unwrap().as_mut() {
            Some(kept) => kept.push((sender, answer)),
            None => sender.send(answer).unwrap(),
        }
        receiver
    }

    fn is_gone(&self, server: ServerId) -> bool {
        self.gone[usize::from(server.0)].load(Ordering::Acquire)
    }
}

/// Counters of successes and failures.
#[derive(Default)]
pub(crate) struct Outcomes {
    pub done: AtomicU64,
    pub failed: AtomicU64,
}
