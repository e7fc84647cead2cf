//! The figures of Sherman (SIGMOD 2022, section 5; CACM table 3), with FG+ as Sherman without its techniques.
//!
//! Medians of half-read, half-write mixes lie between two modes and are left out: the paper does not tell reads and
//! writes apart.

use farwood_index::Switches;
use farwood_index::sherman::{NodeSize, Techniques};
use hdrhistogram::Histogram;

use super::band::{compare, run_all, run_band, us};
use super::cluster::{Measured, Setup, Tree, run};
use super::workload::{Mix, Popularity};
use super::{Class, Effort, Row};

const SKEW: Popularity = Popularity::Zipf(0.99);
/// Techniques in the order in which the paper adds them (section 5.2).
const LADDER: [(&str, &[&str]); 5] = [
    ("FG+", &[]),
    ("+combine", &["combine"]),
    ("+on-chip", &["on_chip"]),
    ("+hierarchical", &["hierarchical", "handover"]),
    ("+2-level", &["two_level"]),
];
/// The step from which on no client spins against others of its compute node.
const HIERARCHICAL: usize = 3;
const SHERMAN: usize = 4;
/// The paper's leaves and inner nodes.
const NODE_BYTES: usize = 1024;
/// The most bytes that a put without a split writes: lines of an entry, and the unlock.
const ENTRY_BYTES_MAX: u64 = 255;

/// Yields the techniques up to a step of the ladder.
fn techniques(step: usize) -> Techniques {
    let mut techniques = Techniques::NONE;
    for name in LADDER[..=step].iter().flat_map(|(_, names)| *names) {
        assert!(techniques.set(name, true), "the ladder's names are Sherman's");
    }
    techniques
}

fn setup(effort: &Effort, step: usize, mix: Mix, popularity: Popularity) -> Setup {
    // Clients that spin on remote locks wait for tens of milliseconds.
    let spins = popularity != Popularity::Uniform && mix.puts >= 0.5 && step < HIERARCHICAL;
    let (warmup_ns, measured_ns) = if spins { (40_000_000, 200_000_000) } else { (2_000_000, 20_000_000) };
    Setup {
        tree: Tree::Sherman(techniques(step), NodeSize::Bytes(NODE_BYTES)),
        mix,
        popularity,
        keys: effort.keys,
        warmup_ns,
        measured_ns: measured_ns * effort.time_percent / 100,
        seed: effort.seed,
        ..Setup::sherman()
    }
}

/// Simulates table 1: FG+, 176 clients.
pub(super) fn table1(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "sherman-table1";
    let mut rows = Vec::new();
    for (popularity, name, mops, quantiles) in
        [(Popularity::Uniform, "uniform", 31.8, [4.9, 6.4, 14.9]), (SKEW, "skew", 32.9, [4.7, 6.2, 15.3])]
    {
        let measured = run(&setup(effort, 0, Mix::READ_INTENSIVE, popularity))?;
        let title = format!("FG+ read-intensive {name}");
        rows.push(Row::new(NAME, format!("{title}, Mops"), mops, measured.mops(), Class::Even));
        for ((quantile, paper), class) in
            [0.5, 0.9, 0.99].into_iter().zip(quantiles).zip([Class::Even, Class::Even, Class::Tail])
        {
            let figure = format!("{title}, p{:.0} us", quantile * 100.0);
            rows.push(Row::new(NAME, figure, paper, us(&measured.all, quantile), class));
        }
    }
    let measured = run(&setup(effort, 0, Mix::WRITE_INTENSIVE, Popularity::Uniform))?;
    let title = "FG+ write-intensive uniform";
    rows.push(Row::new(NAME, format!("{title}, Mops"), 18.7, measured.mops(), Class::Even));
    rows.push(Row::new(NAME, format!("{title}, p90 us"), 14.3, us(&measured.all, 0.9), Class::Even));
    rows.push(Row::new(NAME, format!("{title}, p99 us"), 19.0, us(&measured.all, 0.99), Class::Tail));
    let (measured, variants) = run_band(&setup(effort, 0, Mix::WRITE_INTENSIVE, SKEW))?;
    let title = "FG+ write-intensive skew";
    let spinning = |figure: &str, paper, of: &dyn Fn(&Measured) -> f64| {
        Row::new(NAME, format!("{title}, {figure}"), paper, of(&measured), Class::Spinning)
            .within(variants.iter().map(of))
    };
    rows.push(spinning("Mops", 0.34, &Measured::mops));
    rows.push(spinning("p90 us", 68.7, &|m| us(&m.all, 0.9)));
    rows.push(spinning("p99 us", 19_890.0, &|m| us(&m.all, 0.99)));
    Ok(rows)
}

/// Runs of the whole ladder: for each step the run itself, then those with the unknowns changed.
fn ladder(effort: &Effort, mix: Mix, popularity: Popularity) -> Result<Vec<Vec<Measured>>, String> {
    let is_skewed = popularity != Popularity::Uniform;
    (0..LADDER.len())
        .map(|step| {
            let setup = setup(effort, step, mix, popularity);
            if !is_skewed {
                return Ok(vec![run(&setup)?]);
            }
            run_all(&setup)
        })
        .collect()
}

/// Compares the least gain of a step with the paper, where every technique helps.
fn order(name: &'static str, workload: &str, ladder: &[Vec<Measured>]) -> Row {
    let gains = ladder.windows(2).map(|steps| steps[1][0].mops() / steps[0][0].mops());
    let figure = format!("{workload}: least gain of a technique (over 1: ordered as in the paper)");
    Row::new(name, figure, 1.0, gains.fold(f64::INFINITY, f64::min), Class::AtLeast)
}

/// Simulates figure 10: skew, techniques added one by one.
pub(super) fn fig10(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "sherman-fig10";
    let mut rows = Vec::new();
    let intensive = ladder(effort, Mix::WRITE_INTENSIVE, SKEW)?;
    let classes = [Class::Spinning, Class::Spinning, Class::Spinning, Class::Skewed];
    for (step, (paper, class)) in (1..).zip([3.37, 3.06, 2.22, 1.03].into_iter().zip(classes)) {
        let figure = format!("write-intensive {}, throughput over the step before", LADDER[step].0);
        let steps = (&intensive[step][..], &intensive[step - 1][..]);
        rows.push(compare((NAME, figure), paper, class, steps, Measured::mops));
    }
    // 23.6 times the 0.34 Mops of table 1, and without the last 3 %.
    let absolute = |step: usize, paper| {
        let figure = format!("write-intensive {}, Mops", LADDER[step].0);
        Row::new(NAME, figure, paper, intensive[step][0].mops(), Class::Skewed)
    };
    rows.push(absolute(HIERARCHICAL, 0.34 * 23.6 / 1.03));
    rows.push(absolute(SHERMAN, 0.34 * 23.6));
    let p99 = |m: &Measured| us(&m.all, 0.99);
    let total = (&intensive[SHERMAN][..], &intensive[0][..]);
    let figure = |text: &str| (NAME, text.to_string());
    rows.push(compare(
        figure("write-intensive Sherman over FG+, throughput"),
        23.6,
        Class::Spinning,
        total,
        Measured::mops,
    ));
    let reversed = (total.1, total.0);
    rows.push(compare(figure("write-intensive FG+ over Sherman, p99"), 30.2, Class::Spinning, reversed, p99));
    rows.push(order(NAME, "write-intensive", &intensive));
    let only = ladder(effort, Mix::WRITE_ONLY, SKEW)?;
    rows.push(order(NAME, "write-only", &only));
    let total = (&only[SHERMAN][..], &only[0][..]);
    rows.push(compare(
        figure("write-only Sherman over FG+, throughput"),
        24.7,
        Class::Spinning,
        total,
        Measured::mops,
    ));
    let reversed = (total.1, total.0);
    let p50 = |m: &Measured| us(&m.all, 0.5);
    rows.push(compare(figure("write-only FG+ over Sherman, p50"), 1.2, Class::Even, reversed, p50));
    rows.push(compare(figure("write-only FG+ over Sherman, p99"), 35.8, Class::Spinning, reversed, p99));
    Ok(rows)
}

/// Simulates figure 11: uniform.
pub(super) fn fig11(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "sherman-fig11";
    let mut rows = Vec::new();
    for (mix, name, throughput, p99) in
        [(Mix::WRITE_ONLY, "write-only", 1.24, 2.01), (Mix::WRITE_INTENSIVE, "write-intensive", 1.15, 1.27)]
    {
        let baseline = run(&setup(effort, 0, mix, Popularity::Uniform))?;
        let sherman = run(&setup(effort, SHERMAN, mix, Popularity::Uniform))?;
        let ratio = sherman.mops() / baseline.mops();
        rows.push(Row::new(
            NAME,
            format!("{name}: Sherman over FG+, throughput"),
            throughput,
            ratio,
            Class::Even,
        ));
        if mix == Mix::WRITE_ONLY {
            let ratio = us(&baseline.all, 0.5) / us(&sherman.all, 0.5);
            rows.push(Row::new(NAME, format!("{name}: FG+ over Sherman, p50"), 1.24, ratio, Class::Even));
        }
        let ratio = us(&baseline.all, 0.99) / us(&sherman.all, 0.99);
        rows.push(Row::new(NAME, format!("{name}: FG+ over Sherman, p99"), p99, ratio, Class::Tail));
    }
    Ok(rows)
}

/// Simulates figure 13 and section 5.4: three coroutines on each core.
pub(super) fn fig13(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "sherman-fig13";
    let many = |step, popularity| {
        let setup = setup(effort, step, Mix::WRITE_INTENSIVE, popularity);
        run(&Setup { clients: 528, ..setup })
    };
    let uniform = many(SHERMAN, Popularity::Uniform)?.mops();
    let baseline = many(0, Popularity::Uniform)?.mops();
    Ok(vec![
        Row::new(NAME, "528 clients uniform, Sherman Mops", 44.0, uniform, Class::Skewed),
        Row::new(NAME, "528 clients uniform, Sherman over FG+", 1.14, uniform / baseline, Class::Skewed),
        Row::new(
            NAME,
            "528 clients skew 0.9, Sherman Mops",
            21.0,
            many(SHERMAN, Popularity::Zipf(0.9))?.mops(),
            Class::Skewed,
        ),
        Row::new(
            NAME,
            "528 clients skew 0.99, Sherman Mops",
            9.0,
            many(SHERMAN, SKEW)?.mops(),
            Class::Skewed,
        ),
    ])
}

fn share_of(histogram: &Histogram<u64>, value: u64) -> f64 {
    histogram.count_at(value) as f64 / histogram.len() as f64
}

/// Simulates figure 14: what the clients count, write-intensive, skewed.
pub(super) fn fig14(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "sherman-fig14";
    let (baseline, variants) = run_band(&setup(effort, 0, Mix::WRITE_INTENSIVE, SKEW))?;
    let sherman = run(&setup(effort, SHERMAN, Mix::WRITE_INTENSIVE, SKEW))?;
    let p99 = |m: &Measured| m.write_round_trips.value_at_quantile(0.99) as f64;
    // A split writes two nodes, any other put its entry and the unlock.
    let entries =
        sherman.write_bytes.count_between(0, ENTRY_BYTES_MAX) as f64 / sherman.write_bytes.len() as f64;
    Ok(vec![
        Row::new(NAME, "FG+ gets without a retry", 0.9998, share_of(&baseline.read_retries, 0), Class::Even),
        Row::new(
            NAME,
            "Sherman gets without a retry",
            0.9998,
            share_of(&sherman.read_retries, 0),
            Class::Even,
        ),
        Row::new(
            NAME,
            "FG+ puts in 4 round trips",
            0.94,
            share_of(&baseline.write_round_trips, 4),
            Class::Even,
        ),
        Row::new(NAME, "FG+ puts, p99 of round trips", 453.0, p99(&baseline), Class::Spinning)
            .within(variants.iter().map(p99)),
        Row::new(
            NAME,
            "Sherman puts in 3 round trips",
            0.936,
            share_of(&sherman.write_round_trips, 3),
            Class::Even,
        ),
        Row::new(
            NAME,
            "Sherman puts in 2 round trips",
            0.036,
            share_of(&sherman.write_round_trips, 2),
            Class::Even,
        ),
        Row::new(NAME, "Sherman puts, p99 of round trips", 11.0, p99(&sherman), Class::Tail),
        Row::new(NAME, "Sherman puts that write no whole node", 0.996, entries, Class::Even),
    ])
}

/// Simulates CACM table 3: scans, million per second. In range-write half of the clients scan and half put.
pub(super) fn scan(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "sherman-scan";
    let mut rows = Vec::new();
    for (step, name, figures) in
        [(0, "FG+", [26.09, 5.77, 7.74, 2.49]), (SHERMAN, "Sherman", [25.55, 5.76, 14.08, 3.12])]
    {
        let mixes = [
            (Mix::range_only(100), "range-only 100"),
            (Mix::range_only(1000), "range-only 1000"),
            (Mix::range_write(100), "range-write 100"),
            (Mix::range_write(1000), "range-write 1000"),
        ];
        for ((mix, workload), paper) in mixes.into_iter().zip(figures) {
            let setup = setup(effort, step, mix, SKEW);
            // Puts that spin on remote locks are what the scans compete with.
            let spins = step < HIERARCHICAL && mix.puts > 0.0;
            let class = if spins { Class::Spinning } else { Class::Bound };
            let measured_ns = setup.measured_ns / if spins { 20 } else { 2 };
            let setup = Setup { measured_ns, ..setup };
            let mops = |m: &Measured| m.reads.len() as f64 / m.seconds / 1e6;
            let row = Row::new(NAME, format!("{name} {workload}, M scans/s"), paper, 0.0, class);
            let measured = run(&setup)?;
            let simulated = mops(&measured);
            rows.push(Row { simulated, band: (simulated, simulated), ..row });
        }
    }
    Ok(rows)
}
