//! The effect of skew, and of the sizes of caches, values and leaves (figure 18), 640 clients.

use farwood_index::sherman::NodeSize;

use super::super::band::{compare_all, run_read_rates};
use super::super::cluster::{Measured, Setup, Tree};
use super::super::smart::Workload;
use super::super::workload::Popularity;
use super::super::{Class, Effort, Row};
use super::{CHIME, CLIENTS, Geometry, SHERMAN, SPAN, System, VALUE_BYTES, setup};

const NAME: &str = "chime-fig18";
const LONG_VALUE: usize = 512;
/// The paper's shortest and longest leaves.
const SPANS: [usize; 2] = [8, 512];

/// Simulates figure 18: by what factor throughput changes.
pub(in super::super) fn fig18(effort: &Effort) -> Result<Vec<Row>, String> {
    let mut rows = skew(effort)?;
    let of = |tree: Tree, value_bytes| {
        let setup = setup(effort, tree, &Workload::C, CLIENTS);
        run_read_rates(&Setup { value_bytes, ..setup })
    };
    let row = |figure: String, paper, class, (above, below): (Vec<Measured>, Vec<Measured>)| {
        compare_all((NAME, figure), paper, class, (&above, &below), Measured::mops)
    };
    let enough = |system: System| {
        let setup = setup(effort, system.tree(VALUE_BYTES), &Workload::C, CLIENTS);
        run_read_rates(&Setup { cache_bytes: Setup::CACHE_BYTES, ..setup })
    };
    let both = (enough(System::Chime)?, enough(System::Smart)?);
    rows.push(row("C: caches for all, CHIME over SMART".into(), 1.0, Class::Even, both));
    for (system, paper, class) in [
        (System::Chime, 9.4, Class::Bound),
        (System::Sherman, 15.5, Class::Bound),
        (System::Smart, 1.2, Class::Even),
    ] {
        let value = |bytes| of(system.tree(bytes), bytes);
        let figure = format!("C: {}, values of 8 over values of {LONG_VALUE} B", system.name());
        rows.push(row(figure, paper, class, (value(VALUE_BYTES)?, value(LONG_VALUE)?)));
    }
    let sherman = |leaf| of(Tree::Sherman(SHERMAN, NodeSize::Slots { leaf, inner: SPAN }), VALUE_BYTES);
    let [short, long] = SPANS;
    let both = (sherman(short)?, sherman(long)?);
    rows.push(row(format!("C: Sherman, span {short} over {long}"), 18.6, Class::Bound, both));
    let chime = |geometry| of(Tree::Chime(CHIME, geometry), VALUE_BYTES);
    let span = |span| chime(Geometry { span, ..Geometry::default() });
    let both = (span(SPAN)?, span(long)?);
    rows.push(row(format!("C: CHIME, span {SPAN} over {long}"), 1.0, Class::Bound, both));
    let neighbourhood = |neighbourhood| chime(Geometry { neighbourhood, ..Geometry::default() });
    let both = (neighbourhood(2)?, neighbourhood(16)?);
    rows.push(row("C: CHIME, neighbourhood of 2 over 16".into(), 1.1, Class::Bound, both));
    Ok(rows)
}

/// Simulates figure 18a, half gets and half puts. The paper says what grows and what falls, and not how much.
fn skew(effort: &Effort) -> Result<Vec<Row>, String> {
    let runs = |system: System, exponent| {
        let setup = setup(effort, system.tree(VALUE_BYTES), &Workload::A, CLIENTS);
        run_read_rates(&Setup { popularity: Popularity::Zipf(exponent), ..setup })
    };
    let row = |system: System, above: f64, below: f64| {
        let figure = format!("A: {}, skew {above} over {below} (over 1 in the paper)", system.name());
        let runs = (runs(system, above)?, runs(system, below)?);
        Ok(compare_all((NAME, figure), 1.0, Class::AtLeast, (&runs.0, &runs.1), Measured::mops))
    };
    [row(System::Chime, 0.99, 0.5), row(System::Sherman, 0.99, 0.5), row(System::Smart, 0.5, 0.99)]
        .into_iter()
        .collect()
}
