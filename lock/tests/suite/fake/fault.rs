//! Failures of the fake's chains: which, after how many verbs, with which lines of the WRITE behind them.

use std::collections::{HashMap, HashSet};

use farwood_runtime::chain::{Op, Verb};
use farwood_runtime::{Buf, Chain, FabricError, RemotePtr, ServerId};
use rand::Rng;
use rand::rngs::SmallRng;

const LINE_BYTES: u64 = 64;

/// One failure of one chain.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fault {
    /// Verbs that are executed whole.
    pub(crate) verbs: usize,
    /// The lines of the next verb that are, if it is a WRITE: bit i for its i-th line.
    pub(crate) lines: u32,
    /// True if the server does not answer at all: then nothing is executed.
    pub(crate) gone: bool,
}

impl Fault {
    pub(crate) const GONE: Fault = Fault { verbs: 0, lines: 0, gone: true };

    pub(super) fn cause(self) -> FabricError {
        let server = ServerId(0);
        if self.gone { FabricError::ServerGone { server } } else { FabricError::QueuePair { server } }
    }
}

/// Failures to come.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) rate: f64,
    /// By the number of the chain, in the order in which all of them are posted.
    pub(super) planned: HashMap<usize, Fault>,
    /// Those of them in which the compute node dies.
    pub(super) deaths: HashSet<usize>,
    pub(super) posted: usize,
}

impl Faults {
    /// Tells whether the compute node dies in the chain that [`Faults::next`] was asked about last.
    pub(super) fn is_death(&self) -> bool {
        self.deaths.contains(&(self.posted - 1))
    }

    /// Yields the failure of the next chain, if any.
    pub(super) fn next(&mut self, verbs: usize, rng: &mut SmallRng) -> Option<Fault> {
        self.posted += 1;
        let drawn = Fault { verbs: rng.random_range(0..=verbs), lines: rng.random(), gone: false };
        let fails = rng.random_bool(self.rate);
        let planned = self.planned.remove(&(self.posted - 1));
        planned
            .map(|fault| Fault { verbs: fault.verbs.min(verbs), ..fault })
            .or_else(|| fails.then_some(drawn))
    }
}

/// Yields the lines that an access covers.
pub(super) fn lines_of(op: Op) -> u32 {
    match op {
        Op::Write { at, len, .. } if len > 0 => {
            let lines = (at + u64::from(len) - 1) / LINE_BYTES - at / LINE_BYTES + 1;
            lines as u32
        }
        _ => 1,
    }
}

/// Executes one line of a WRITE.
pub(super) fn write_line(memory: &mut [u8], op: Op, buf: &Option<Buf>, line: u32) {
    let Op::Write { at, from, len } = op else { unreachable!("only WRITEs go line by line") };
    let data = &buf.as_ref().expect("a WRITE has a buffer")[from as usize..][..len as usize];
    let begin = (at / LINE_BYTES + u64::from(line)) * LINE_BYTES;
    let (begin, end) = (begin.max(at), (begin + LINE_BYTES).min(at + u64::from(len)));
    let piece = &data[(begin - at) as usize..(end - at) as usize];
    memory[begin as usize..][..piece.len()].copy_from_slice(piece);
}

/// Executes the WRITE's lines that arrive before the chain fails; if they come in order, the first ones. A word arrives
/// or does not.
pub(super) fn execute_in_part(memory: &mut [u8], op: Op, buf: &Option<Buf>, lines: u32, in_order: bool) {
    let Op::Write { .. } = op else { return };
    let arrived = if in_order { (1 << lines.trailing_ones().min(31)) - 1 } else { lines };
    for line in (0..lines_of(op)).filter(|line| arrived >> line & 1 == 1) {
        write_line(memory, op, buf, line);
    }
}

/// Rebuilds the chain of these verbs.
pub(super) fn rebuilt(verbs: &[Verb], buf: Option<Buf>) -> Chain {
    let server = ServerId(0);
    let mut chain = buf.map_or_else(|| Chain::new(server), |buf| Chain::with_buffer(server, buf));
    let ptr = |at| RemotePtr::new(server, at);
    let local = |from: u32, len: u32| from as usize..(from + len) as usize;
    for verb in verbs {
        if verb.fenced {
            chain.fence();
        }
        match verb.op {
            Op::Read { at, to, len } => chain.read(ptr(at), local(to, len)),
            Op::Write { at, from, len } => chain.write(ptr(at), local(from, len)),
            Op::WriteWord { at, word } => chain.write_word(ptr(at), word),
            Op::Cas { at, expected, desired } => chain.cas(ptr(at), expected, desired),
            Op::MaskedCas { at, expected, desired, to } => {
                chain.masked_cas(ptr(at), expected, desired, to as usize)
            }
            Op::Faa { at, add } => chain.faa(ptr(at), add),
        };
    }
    chain
}
