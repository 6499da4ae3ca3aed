//! `manifold config`: makes, checks, compares and describes configuration files.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Parser, Subcommand, ValueEnum};
use controllers_kit::Descriptor;
use serde_json::{Value as Json, json};

use super::{File, Wrong, read, remedy, schema, source::Source, yaml::BYTES_MAX};
use crate::{
    Options, Surroundings,
    args::{self, Field, Leaf, Parsed, Spec, Tree, Value, Values},
};

/// The first word of these command lines.
pub const WORD: &str = "config";

/// Exit code: what was given is wrong, or two configurations differ.
const NEGATIVE: u8 = 1;
/// Exit code: a command line that can't be understood, a file that can't be read.
const UNUSABLE: u8 = 2;
/// Of a value that a table shows, in characters.
const CELL_MAX: usize = 60;

#[derive(Parser)]
#[command(
    name = "config",
    bin_name = "manifold config",
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Makes, checks and compares files for --config.
#[derive(Subcommand)]
#[command(
    after_help = "docs/config.md describes the file. FILE is a configuration, what /configz answers, or the manifest of a pod \
    (of which the flags are read); - is standard input."
)]
enum Command {
    /// Prints the configuration file that says what flags say.
    #[command(after_help = "Examples:\n  \
        manifold config from-flags -f /etc/kubernetes/manifests/kube-controller-manager.yaml > manifold.yaml\n  \
        manifold config from-flags --kube-api-qps=50 --controllers=*,-ttl\n\
        Exit codes: 0, 1 the flags are wrong, 2 nothing could be read.")]
    FromFlags {
        /// Take the flags of the pod in this manifest, or what /configz has answered.
        #[arg(short, long, value_name = "FILE", conflicts_with = "flags")]
        filename: Option<PathBuf>,
        /// Every field, with its default where it was not given.
        #[arg(long)]
        all: bool,
        /// Output.
        #[arg(short, long, value_enum, default_value = "yaml")]
        output: Output,
        /// The flags, as kube-controller-manager or manifold takes them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<String>,
    },
    /// Says what is wrong with a file, with lines and remedies.
    #[command(
        after_help = "Files that it names are not read, unless --files is given: they may be another host's.\n\
        Exit codes: 0 a replica would start with it, 1 it would not, 2 nothing could be read."
    )]
    Validate {
        /// The file.
        file: PathBuf,
        /// Read the files that it names as a replica would.
        #[arg(long)]
        files: bool,
        /// Flags that are given beside it, which go before it.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<String>,
    },
    /// Prints the fields in which two files differ, and whether a change needs a restart.
    #[command(
        after_help = "What is not given in a file is compared by its default.\n\
        Exit codes: 0 they are the same, 1 they differ, 2 one of them is wrong or can't be read."
    )]
    Diff {
        /// The one file.
        from: PathBuf,
        /// The other; the defaults where it is not given.
        to: Option<PathBuf>,
        /// Output.
        #[arg(short, long, value_enum, default_value = "text")]
        output: DiffOutput,
    },
    /// Prints the JSON schema of the file, for editors and policies.
    Schema,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Yaml,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DiffOutput {
    Text,
    Json,
}

/// How a command failed: what to print, a line each, and the exit code.
#[derive(Debug, PartialEq, Eq)]
struct Failure(Vec<String>, u8);

fn negative(why: impl Into<String>) -> Failure {
    Failure(vec![why.into()], NEGATIVE)
}

fn unusable(why: impl Into<String>) -> Failure {
    Failure(vec![why.into()], UNUSABLE)
}

impl From<Wrong> for Failure {
    fn from(wrong: Wrong) -> Self {
        Self(wrong.0, NEGATIVE)
    }
}

/// What a command prints.
#[derive(Debug, Default, PartialEq, Eq)]
struct Printed {
    out: String,
    notes: Vec<String>,
    code: u8,
}

/// Runs the command; `words` begin with [`WORD`].
pub fn run(words: &[String], descriptors: &[Descriptor]) -> ExitCode {
    let cli: Cli = match doctor::parsed(words) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let surroundings = Surroundings::now();
    match act(cli.command, descriptors, &surroundings) {
        Ok(Printed { out, notes, code }) => {
            for note in notes {
                eprintln!("manifold config: {note}");
            }
            // A reader that has seen enough, such as head, is no error.
            let _ended = std::io::stdout().write_all(out.as_bytes());
            ExitCode::from(code)
        }
        Err(Failure(lines, code)) => {
            for line in lines {
                eprintln!("manifold config: {}", line.replace('\n', " "));
            }
            ExitCode::from(code)
        }
    }
}

fn act(
    command: Command,
    descriptors: &[Descriptor],
    surroundings: &Surroundings,
) -> Result<Printed, Failure> {
    let specs = args::flags(descriptors);
    match command {
        Command::Schema => Ok(Printed {
            out: format!("{:#}\n", schema::schema(&args::shape(&specs))),
            ..Printed::default()
        }),
        Command::FromFlags {
            filename,
            all,
            output,
            flags,
        } => {
            let given = match filename {
                Some(path) => given(&path, &specs)?,
                None if flags.is_empty() => {
                    return Err(unusable(
                        "give flags, as in manifold config from-flags --v=2, or -f and a manifest",
                    ));
                }
                None => Given {
                    values: values_of(&specs, flags)?,
                    notes: Vec::new(),
                    file: None,
                },
            };
            from_flags(&given, all, output)
        }
        Command::Validate { file, files, flags } => {
            validate(&file, files, flags, &specs, descriptors, surroundings)
        }
        Command::Diff { from, to, output } => {
            let wrong = |Failure(lines, _)| Failure(lines, UNUSABLE);
            let left = given(&from, &specs).map_err(wrong)?;
            let right = match &to {
                Some(path) => given(path, &specs).map_err(wrong)?,
                None => Given {
                    values: values_of(&specs, Vec::new())?,
                    notes: Vec::new(),
                    file: None,
                },
            };
            let name = |path: &Path| path.display().to_string();
            let to = to.as_deref().map_or("default".to_owned(), name);
            Ok(diff((&name(&from), &left), (&to, &right), output))
        }
    }
}

/// What a file says.
struct Given {
    values: Values,
    notes: Vec<String>,
    /// The configuration; `None` of a manifest.
    file: Option<File>,
}

fn values_of(specs: &[Spec], words: Vec<String>) -> Result<Values, Failure> {
    match args::parse(specs.to_vec(), words).map_err(|why| negative(why.to_string()))? {
        Parsed::Run(values) => Ok(values),
        Parsed::Print(_) => Err(negative(
            "--help and --version print and end: leave them out",
        )),
    }
}

/// The bytes of a file, or of standard input.
fn content(path: &Path) -> Result<Vec<u8>, Failure> {
    if path != Path::new("-") {
        return reload::read(path).map_err(|why| {
            unusable(format!(
                "can't read {}: {why}{}",
                path.display(),
                remedy(&why)
            ))
        });
    }
    let mut content = Vec::new();
    std::io::stdin()
        .take(BYTES_MAX as u64 + 1)
        .read_to_end(&mut content)
        .map_err(|why| unusable(format!("can't read standard input: {why}")))?;
    Ok(content)
}

fn given(path: &Path, specs: &[Spec]) -> Result<Given, Failure> {
    let name = match path == Path::new("-") {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    };
    of_content(&name, content(path)?, specs)
}

fn of_content(name: &str, content: Vec<u8>, specs: &[Spec]) -> Result<Given, Failure> {
    let document = read(name, &content)?;
    let source = Source::of(document).map_err(|why| negative(format!("{name}: {why}")))?;
    match source {
        Source::Configuration(document) => {
            let mut values = values_of(specs, Vec::new())?;
            let file = File::of(name, content, &document, specs)?;
            values.beneath(file.settings().iter().cloned());
            Ok(Given {
                values,
                notes: Vec::new(),
                file: Some(file),
            })
        }
        Source::Flags { words, mut notes } => {
            let values = values_of(specs, words).map_err(|Failure(lines, code)| {
                let lines = lines.into_iter().map(|line| format!("{name}: {line}"));
                Failure(lines.collect(), code)
            })?;
            if let Some(config) = values.some("config") {
                notes.push(format!(
                    "only the flags are read, not the file of --config={config}"
                ));
            }
            Ok(Given {
                values,
                notes,
                file: None,
            })
        }
    }
}

fn from_flags(given: &Given, all: bool, output: Output) -> Result<Printed, Failure> {
    let Given { values, notes, .. } = given;
    let mut notes = notes.clone();
    let stays = values.specs().iter().filter_map(|spec| match spec.field {
        Field::FlagOnly(why) if values.given(spec.name) => Some((spec.name, why)),
        _ => None,
    });
    notes.extend(stays.map(|(flag, why)| format!("--{flag} stays on the command line: {why}")));
    notes.extend(
        values
            .without_effect()
            .map(|(flag, why)| format!("--{flag} has no effect: {why}")),
    );
    let tree = args::shape(values.specs()).write(
        &|spec| (all || values.given(spec.name)).then(|| values.get(spec.name).clone()),
        false,
    );
    let out = match output {
        Output::Yaml => serde_yaml::to_string(&tree).map_err(|why| unusable(why.to_string()))?,
        Output::Json => {
            serde_json::to_string_pretty(&tree).map_err(|why| unusable(why.to_string()))? + "\n"
        }
    };
    Ok(Printed {
        out,
        notes,
        code: 0,
    })
}

fn validate(
    path: &Path,
    files: bool,
    flags: Vec<String>,
    specs: &[Spec],
    descriptors: &[Descriptor],
    surroundings: &Surroundings,
) -> Result<Printed, Failure> {
    let Given {
        mut values,
        mut notes,
        file,
    } = given(path, specs)?;
    if let Some(file) = &file {
        values = values_of(specs, flags)?;
        values.beneath(file.settings().iter().cloned());
    } else if !flags.is_empty() {
        return Err(unusable(
            "flags are given beside a configuration, not beside a manifest, which has its own",
        ));
    }
    let surroundings = Surroundings {
        elsewhere: !files,
        ..surroundings.clone()
    };
    let options = match Options::new(values.clone(), descriptors, &surroundings) {
        Ok(options) => options,
        Err(invalid) => {
            return Err(match file {
                Some(file) => file.place(&values, &invalid).into(),
                None => Failure(invalid.0, NEGATIVE),
            });
        }
    };
    notes.extend(options.warning);
    let overriding = values.overriding();
    if !overriding.is_empty() {
        notes.push(format!(
            "these flags go before their fields: --{}",
            overriding.join(", --")
        ));
    }
    let count = specs.iter().filter(|spec| values.given(spec.name)).count();
    Ok(Printed {
        out: format!("{}: valid, fields given: {count}\n", path.display()),
        notes,
        code: 0,
    })
}

/// A field in which two configurations differ.
struct Difference {
    field: String,
    from: Json,
    to: Json,
    restart: bool,
}

fn differences(from: &Values, to: &Values) -> Vec<Difference> {
    let specs = from.specs();
    let shape = args::shape(specs);
    let flat = |values: &Values| {
        let tree = shape.write(&|spec| Some(comparable(values, spec)), false);
        let mut flat = BTreeMap::new();
        flatten(&tree, String::new(), &mut flat);
        flat
    };
    let (left, right) = (flat(from), flat(to));
    let mut differences: Vec<Difference> = shape
        .leaves()
        .into_iter()
        .filter_map(|(field, leaf)| {
            let (Leaf::Flag(spec) | Leaf::First(spec) | Leaf::Second(spec)) = leaf else {
                return None;
            };
            let of = |flat: &BTreeMap<String, Json>| {
                flat.get(field).cloned().unwrap_or_else(|| json!(""))
            };
            let (from, to) = (of(&left), of(&right));
            (from != to).then(|| Difference {
                field: field.to_owned(),
                from,
                to,
                restart: !spec.live,
            })
        })
        .collect();
    let flag_only = specs.iter().filter(|spec| {
        matches!(spec.field, Field::FlagOnly(_))
            && spec.name != "config"
            && from.get(spec.name) != to.get(spec.name)
    });
    differences.extend(flag_only.map(|spec| Difference {
        field: format!("--{}", spec.name),
        from: json!(from.show(spec.name)),
        to: json!(to.show(spec.name)),
        restart: true,
    }));
    differences
}

/// A value in which the same is written the same: `/configz` names controllers by their new names.
fn comparable(values: &Values, spec: &Spec) -> Value {
    match (spec.name, values.get(spec.name)) {
        ("controllers", Value::List(entries)) => {
            let name = |entry: &String| args::canonical_entry(entry);
            Value::List(entries.iter().map(name).collect())
        }
        (_, value) => value.clone(),
    }
}

fn flatten(tree: &Tree, path: String, into: &mut BTreeMap<String, Json>) {
    match tree {
        Tree::Leaf(value) => {
            into.insert(path, value.clone());
        }
        Tree::Section(fields) => {
            for (name, field) in fields {
                let path = match path.is_empty() {
                    true => (*name).to_owned(),
                    false => format!("{path}.{name}"),
                };
                flatten(field, path, into);
            }
        }
    }
}

fn diff(
    (from_name, from): (&str, &Given),
    (to_name, to): (&str, &Given),
    output: DiffOutput,
) -> Printed {
    let differences = differences(&from.values, &to.values);
    let code = if differences.is_empty() { 0 } else { NEGATIVE };
    let notes = [(from_name, from), (to_name, to)]
        .into_iter()
        .flat_map(|(name, given)| {
            let notes = given.notes.iter();
            notes.map(move |note| format!("{name}: {note}"))
        })
        .collect();
    let out = match output {
        DiffOutput::Json => {
            let rows: Vec<Json> = differences
                .iter()
                .map(|one| {
                    json!({
                        "field": one.field,
                        "from": one.from,
                        "to": one.to,
                        "restart": one.restart,
                    })
                })
                .collect();
            format!(
                "{:#}\n",
                json!({ "from": from_name, "to": to_name, "differences": rows })
            )
        }
        DiffOutput::Text if differences.is_empty() => String::new(),
        DiffOutput::Text => {
            let cell = |value: &Json| {
                let text = value.to_string();
                match text.char_indices().nth(CELL_MAX) {
                    Some((end, _)) => format!("{}...", &text[..end]),
                    None => text,
                }
            };
            let head = ["FIELD", from_name, to_name, "TAKES EFFECT"].map(str::to_owned);
            let rows = differences.iter().map(|one| {
                let takes_effect = if one.restart {
                    "after a restart"
                } else {
                    "at once"
                };
                [
                    one.field.clone(),
                    cell(&one.from),
                    cell(&one.to),
                    takes_effect.to_owned(),
                ]
            });
            table(&std::iter::once(head).chain(rows).collect::<Vec<_>>())
        }
    };
    Printed { out, notes, code }
}

fn table(rows: &[[String; 4]]) -> String {
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths = [width(0), width(1), width(2)];
    rows.iter()
        .map(|[field, from, to, takes_effect]| {
            let [a, b, c] = widths;
            format!("{field:a$}   {from:b$}   {to:c$}   {takes_effect}\n")
        })
        .collect()
}

#[cfg(test)]
mod tests;
