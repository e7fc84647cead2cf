//! Mutation testing of the protocols: small mistakes, planted in a copy of the tree all at once, each awake alone in a
//! run of the swarm, which has to catch it. `docs/testing.md` says how to run it and has the results.
//!
//! It knows how Rust is written and what `farwood sim run` prints, and nothing of what the protocols do, except in
//! `hand.rs`.

mod hand;
mod judge;
mod mutant;
mod points;
mod reach;
mod table;
mod tree;

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};

use judge::{Bounds, End};
use mutant::{Fate, Mutant, TAKEOVER, Verdict, WITH_TAKEOVER};
use reach::Reach;
use tree::Places;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Small mistakes planted in the protocols, judged by the swarm.
#[derive(Parser)]
struct Args {
    /// The repository; all is written to its folder target/mutants.
    #[arg(long, default_value = ".")]
    repository: PathBuf,
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Plants all mistakes and builds the program, once.
    Build,
    /// Lists the mistakes.
    List,
    /// Runs seeds without any mistake, and notes which mistakes each would reach.
    Reach(SeedArgs),
    /// Judges a sample of them, and adds the verdicts to those there are.
    Judge(JudgeArgs),
    /// Prints the tables of the verdicts.
    Table,
    /// Forgets the verdicts.
    Forget,
}

#[derive(clap::Args)]
struct JudgeArgs {
    /// So many at most: those by hand first, then in the order of their numbers, which is that of chance.
    #[arg(long, default_value_t = usize::MAX)]
    max: usize,
    /// These only, by their numbers.
    #[arg(long, value_delimiter = ',')]
    only: Vec<u32>,
    /// Those only whose file has one of these in its path.
    #[arg(long, value_delimiter = ',')]
    files: Vec<String>,
    /// Also those that have a verdict; survivors get another chance.
    #[arg(long)]
    again: bool,
    /// Those that have survived so far.
    #[arg(long)]
    survivors: bool,
    #[command(flatten)]
    seeds: SeedArgs,
}

#[derive(clap::Args)]
struct SeedArgs {
    /// Seeds of SMART: to judge, those that reach the mistake, as far as is noted.
    #[arg(long, default_value_t = 100)]
    smart: u64,
    /// Seeds of Sherman.
    #[arg(long, default_value_t = 50)]
    sherman: u64,
    /// Seeds of CHIME.
    #[arg(long, default_value_t = 50)]
    chime: u64,
    /// Seeds of Dolphin.
    #[arg(long, default_value_t = 50)]
    dolphin: u64,
    /// Seconds after which a seed hangs.
    #[arg(long, default_value_t = 40)]
    silence: u64,
    /// Memory of a run.
    #[arg(long, default_value_t = 6 << 20)]
    memory_kib: u64,
    /// Runs at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let places = Places::new(&args.repository.canonicalize()?);
    match &args.command {
        Action::Build => println!("{} mutants", tree::build(&places)?.len()),
        Action::List => listed(&places)?.iter().for_each(|mutant| println!("{}", about(mutant))),
        Action::Reach(args) => {
            for index in ["smart", "sherman", "chime", "dolphin"].into_iter().chain(WITH_TAKEOVER) {
                reach::record(&places, &places.program(), index, args.of(index), args.bounds())?;
            }
        }
        Action::Judge(args) => judge_all(&places, args)?,
        Action::Table => print!("{}", table::tables(&verdicts(&places)?)),
        Action::Forget => fs::write(&places.verdicts, "")?,
    }
    Ok(())
}

fn about(mutant: &Mutant) -> String {
    let Mutant { number, file, line, function, operator, original, mutated, .. } = mutant;
    format!("{number} {file}:{line} {function}: {operator}: `{original}` -> `{mutated}`")
}

fn listed(places: &Places) -> Result<Vec<Mutant>> {
    let text = fs::read_to_string(&places.list).map_err(|error| format!("build first: {error}"))?;
    Ok(serde_json::from_str(&text)?)
}

fn verdicts(places: &Places) -> Result<Vec<Verdict>> {
    let text = fs::read_to_string(&places.verdicts).unwrap_or_default();
    Ok(text.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?)
}

fn judge_all(places: &Places, args: &JudgeArgs) -> Result<()> {
    let known = verdicts(places)?;
    let survives = |number| {
        let last = known.iter().rfind(|verdict| verdict.mutant.number == number);
        last.map(|verdict| matches!(verdict.fate, Fate::Survived { .. }))
    };
    let mut chosen = listed(places)?;
    let is_asked_for =
        |mutant: &Mutant| args.files.is_empty() || args.files.iter().any(|part| mutant.file.contains(part));
    chosen.retain(is_asked_for);
    chosen.sort_by_key(|mutant| (!mutant.is_by_hand(), mutant.number));
    let equivalent = table::equivalent();
    if args.only.is_empty() {
        chosen.truncate(args.max);
        chosen.retain(|mutant| !equivalent.contains_key(&mutant.number));
    } else {
        chosen.retain(|mutant| args.only.contains(&mutant.number));
    }
    chosen.retain(|mutant| match survives(mutant.number) {
        None => !args.survivors,
        Some(survives) => args.again || (args.survivors && survives),
    });
    let reach = Reach::read(places)?;
    let mut file = OpenOptions::new().create(true).append(true).open(&places.verdicts)?;
    for (place, mutant) in chosen.iter().enumerate() {
        let verdict = judge_one(places, &reach, &args.seeds, mutant)?;
        println!(
            "{}/{} {} s  {:?}  {}",
            place + 1,
            chosen.len(),
            verdict.seconds,
            verdict.fate,
            about(mutant)
        );
        writeln!(file, "{}", serde_json::to_string(&verdict)?)?;
    }
    Ok(())
}

fn judge_one(places: &Places, reach: &Reach, args: &SeedArgs, mutant: &Mutant) -> Result<Verdict> {
    let (begun, mut reached, mut count) = (Instant::now(), false, 0);
    let mut fate = None;
    for index in mutant.indexes.iter().filter(|index| args.of(index) > 0) {
        let seeds = reach.seeds(index, mutant.number, args.of(index) as usize);
        let number = mutant.number.to_string();
        let failed = judge::run(&places.program(), &number, index, &seeds, args.bounds(), |_, _, told| {
            reached |= !told.is_empty();
            count += 1;
        })?;
        if let Some((seed, end)) = failed {
            let index = index.clone();
            fate = Some(match end {
                End::Crashed => Fate::Crashed { index },
                End::Hung => Fate::Hung { index },
                End::Failed | End::Passed => Fate::Killed { index, seed },
            });
            break;
        }
    }
    let fate = fate.unwrap_or(Fate::Survived { seeds: count });
    Ok(Verdict { mutant: mutant.clone(), fate, reached, runs: count, seconds: begun.elapsed().as_secs() })
}

impl SeedArgs {
    fn of(&self, index: &str) -> u64 {
        match index.strip_suffix(TAKEOVER).unwrap_or(index) {
            "smart" => self.smart,
            "sherman" => self.sherman,
            "chime" => self.chime,
            _ => self.dolphin,
        }
    }

    fn bounds(&self) -> Bounds {
        let SeedArgs { silence, memory_kib, jobs, .. } = *self;
        Bounds { seed: Duration::from_secs(silence), memory_kib, jobs }
    }
}
