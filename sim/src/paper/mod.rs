//! The papers' experiments on the simulated fabric: what a cluster would show, beside what the papers saw.
//!
//! The simulated NICs are calibrated from micro-measurements alone ([`farwood_runtime::sim::Profile`]), so what an
//! index does here is a prediction. Only `nic` and `sherman-fig16` are calibrations: two parameters of the NIC
//! (`responder_slots`, `message_ns`) were fitted to that figure, which is of locks without an index.
//!
//! - `cluster`: a cluster of the papers running one workload; `tree`: the index that it runs on; `client`: its clients;
//!   `workload`: which keys clients ask for; `band`: the same over what is not known of the NIC.
//! - `nic`: micro-measurements of the model itself; `locks`: locks alone; `sherman`, `smart`, `chime`, `dolphin`: the
//!   papers' figures.

mod band;
mod chime;
mod client;
pub mod cluster;
mod dolphin;
mod locks;
mod nic;
mod sherman;
mod smart;
mod tree;
pub mod workload;

pub use self::chime::setups as chime_setups;
use self::cluster::Setup;
pub use self::dolphin::setups as dolphin_setups;
pub use self::smart::setups as smart_setups;

/// One of the runs that a paper's experiments are made of.
#[derive(Clone, Debug)]
pub struct NamedSetup {
    /// The index, as the paper names it.
    pub system: &'static str,
    /// The workload, as the paper names it.
    pub workload: &'static str,
    /// The run.
    pub setup: Setup,
}

/// Classes of figures, by how closely the simulated one has to meet the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Bound by bytes or message rate: 15 %.
    Bound,
    /// Uniform and read-intensive throughput, their ratios, shares of round trips: 20 %.
    Even,
    /// Hierarchical locks under skew, and more clients than cores: 25 %.
    Skewed,
    /// 99th percentiles where nothing collapses: 35 %.
    Tail,
    /// Spinning on remote locks: a factor of two, as a band over what is not known of the NIC.
    Spinning,
    /// Figures that the model was calibrated with: 25 %, and no prediction.
    Calibration,
    /// The paper gives a bound from below, as "more than 50 Mops".
    AtLeast,
}

impl Class {
    /// Yields the relative deviation that is inside.
    pub fn tolerance(self) -> f64 {
        match self {
            Class::Bound => 0.15,
            Class::Even => 0.20,
            Class::Skewed | Class::Calibration => 0.25,
            Class::Tail => 0.35,
            Class::Spinning => 1.0,
            Class::AtLeast => 0.0,
        }
    }

    fn is_inside(self, paper: f64, low: f64, high: f64) -> bool {
        match self {
            // Twice or half; some place of the band.
            Class::Spinning => low <= paper * 2.0 && high >= paper / 2.0,
            Class::AtLeast => high >= paper,
            _ => low <= paper * (1.0 + self.tolerance()) && high >= paper * (1.0 - self.tolerance()),
        }
    }
}

/// One figure: the paper's, and the simulated one.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The experiment's name.
    pub experiment: &'static str,
    /// The name of the figure, with its unit.
    pub figure: String,
    /// The paper's value.
    pub paper: f64,
    /// The simulated value.
    pub simulated: f64,
    /// The least and the most that it says over what is not known of the NIC; the same where that does not matter.
    pub band: (f64, f64),
    /// The class that says how close they should be.
    pub class: Class,
}

impl Row {
    fn new(
        experiment: &'static str,
        figure: impl Into<String>,
        paper: f64,
        simulated: f64,
        class: Class,
    ) -> Self {
        Row { experiment, figure: figure.into(), paper, simulated, band: (simulated, simulated), class }
    }

    /// Takes the same figure of variants of the model as its band.
    fn within(mut self, variants: impl IntoIterator<Item = f64>) -> Self {
        for other in variants {
            self.band = (self.band.0.min(other), self.band.1.max(other));
        }
        self
    }

    /// Divides the simulated value by the paper's.
    pub fn ratio(&self) -> f64 {
        self.simulated / self.paper
    }

    /// Tells whether the figure is as close as its class asks for.
    pub fn is_inside(&self) -> bool {
        self.class.is_inside(self.paper, self.band.0, self.band.1)
    }
}

/// The size of every experiment.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Keys that are stored.
    pub keys: u64,
    /// Virtual time that is measured, in percent of what the experiment takes by itself.
    pub time_percent: u64,
    /// Determines everything.
    pub seed: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Effort { keys: 2_000_000, time_percent: 100, seed: 1 }
    }
}

/// An experiment.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// A description in a few words.
    pub about: &'static str,
    run: fn(&Effort) -> Result<Vec<Row>, String>,
}

impl Experiment {
    /// All of them.
    pub const ALL: [Experiment; 27] = [
        Experiment { name: "nic", about: "micro-measurements of the NIC model itself", run: nic::run },
        Experiment { name: "sherman-fig16", about: "locks alone (calibration)", run: locks::fig16 },
        Experiment { name: "sherman-table1", about: "FG+, read- and write-intensive", run: sherman::table1 },
        Experiment { name: "sherman-fig10", about: "techniques one by one, skewed", run: sherman::fig10 },
        Experiment { name: "sherman-fig11", about: "techniques one by one, uniform", run: sherman::fig11 },
        Experiment { name: "sherman-fig13", about: "528 clients as coroutines", run: sherman::fig13 },
        Experiment { name: "sherman-fig14", about: "retries, round trips, write sizes", run: sherman::fig14 },
        Experiment {
            name: "sherman-scan",
            about: "scans alone and beside puts (CACM table 3)",
            run: sherman::scan,
        },
        Experiment {
            name: "smart-table1",
            about: "bytes read and written per operation",
            run: smart::table1,
        },
        Experiment { name: "smart-fig3", about: "gets, bandwidth against message rate", run: smart::fig3 },
        Experiment { name: "smart-fig11", about: "YCSB against Sherman and ART", run: smart::fig11 },
        Experiment { name: "smart-fig13", about: "more and more clients", run: smart::fig13 },
        Experiment { name: "smart-fig14", about: "scans over value sizes", run: smart::fig14 },
        Experiment { name: "smart-fig15", about: "techniques one by one", run: smart::fig15 },
        Experiment { name: "smart-fig18", about: "skew, sizes of keys and values", run: smart::fig18 },
        Experiment {
            name: "rdwc-on-sherman",
            about: "read delegation and write combining on Sherman",
            run: smart::rdwc_on_sherman,
        },
        Experiment { name: "chime-fig3", about: "limited bandwidth, limited caches", run: chime::fig3 },
        Experiment { name: "chime-fig12", about: "YCSB against Sherman and SMART", run: chime::fig12 },
        Experiment { name: "chime-fig14", about: "cached bytes", run: chime::fig14 },
        Experiment { name: "chime-fig15", about: "techniques one by one", run: chime::fig15 },
        Experiment { name: "chime-fig17", about: "speculative reads over clients", run: chime::fig17 },
        Experiment { name: "chime-fig18", about: "skew, sizes of values and leaves", run: chime::fig18 },
        Experiment { name: "chime-fig19", about: "load factors, hotspots", run: chime::fig19 },
        Experiment { name: "dolphin-ycsb", about: "YCSB against Sherman and SMART", run: dolphin::ycsb },
        Experiment { name: "dolphin-fig8", about: "scans alone and beside inserts", run: dolphin::fig8 },
        Experiment { name: "dolphin-table2", about: "bytes of caches and of nodes", run: dolphin::table2 },
        Experiment {
            name: "dolphin-leaf",
            about: "200 clients that update one leaf",
            run: dolphin::hot_leaf,
        },
    ];

    /// Runs it.
    ///
    /// # Errors
    /// A sentence, if the cluster cannot be made or the index fails.
    pub fn run(&self, effort: &Effort) -> Result<Vec<Row>, String> {
        (self.run)(effort)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_follow_their_class() {
        let row = |class, simulated| Row::new("x", "y", 10.0, simulated, class).is_inside();
        assert!(row(Class::Even, 11.9) && !row(Class::Even, 12.1) && !row(Class::Even, 7.9));
        assert!(row(Class::Spinning, 19.0) && !row(Class::Spinning, 4.9));
        assert!(row(Class::AtLeast, 99.0) && !row(Class::AtLeast, 9.9));
        let banded = Row::new("x", "y", 10.0, 25.0, Class::Spinning).within([18.0, 30.0]);
        assert!(banded.is_inside() && banded.band == (18.0, 30.0));
    }
}
