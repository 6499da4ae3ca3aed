//! The command line: every flag of kube-controller-manager 1.36, and our own.
//!
//! The parser is our own and not clap's, for manifests written for upstream must continue working to the
//! letter: `_` for `-` in names, `--flag value` and `--flag=value`, switches that take no value unless joined
//! by `=`, Go's durations and numbers, lists that grow with each occurrence, one-letter flags with their
//! value attached.

mod fields;
mod gates;
mod upstream;
mod value;

use std::{collections::BTreeMap, fmt::Write, net::IpAddr, time::Duration};

use controllers_kit::{Descriptor, FlagDefault};

pub use fields::{
    API_VERSION, KIND, Leaf, Problem, Setting, Shape, Step, Tree, encode, shape, steps,
};
pub use value::Value;

use crate::version;

/// A flag's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// true or false; true where no value is joined.
    Bool,
    /// A whole number.
    Int,
    /// A whole number of 32 bits.
    Int32,
    /// A number.
    Float,
    /// A number.
    Float32,
    /// A duration as Go writes it.
    Duration,
    /// A text.
    Text,
    /// Texts, separated by commas; each occurrence adds to them.
    List,
    /// Whole numbers, separated by commas.
    Int32List,
    /// `key=value`, separated by commas.
    Map,
    /// `[component:]gate=true|false`, separated by commas.
    Gates,
    /// An IP address.
    Ip,
    /// `cert,key[:names]`.
    NamedCert,
    /// A quantity of bytes.
    Quantity,
    /// A level of verbosity.
    Level,
    /// `pattern=N`, separated by commas.
    Pattern,
    /// `--version`, `--version=raw`.
    Version,
}

impl Kind {
    /// What `--help` calls its value.
    fn label(self) -> &'static str {
        match self {
            Self::Bool => "",
            Self::Int => "int",
            Self::Int32 => "int32",
            Self::Float => "float",
            Self::Float32 => "float32",
            Self::Duration => "duration",
            Self::Text => "string",
            Self::List => "strings",
            Self::Int32List => "int32Slice",
            Self::Map => "stringToString",
            Self::Gates => "key=true|false,...",
            Self::Ip => "ip",
            Self::NamedCert => "namedCertKey",
            Self::Quantity => "quantity",
            Self::Level => "Level",
            Self::Pattern => "pattern=N,...",
            Self::Version => "version[=true]",
        }
    }
}

/// What giving a flag does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// What its help says.
    Acts,
    /// Nothing, and nothing is lost by that.
    Quiet,
    /// Nothing, which is reported at start together with the reason: a controller that is not built yet, or a
    /// part of upstream that has no counterpart.
    Without(&'static str),
}

/// Where a flag's value is in the configuration file and in `/configz`, as names joined by dots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// At this path.
    In(&'static str),
    /// What is before its comma in the one, what is after it in the other.
    Halves(&'static str, &'static str),
    /// Nowhere, for this reason.
    FlagOnly(&'static str),
}

/// One line of a table: name, type, default, effect, help, field.
struct Flag(
    &'static str,
    Kind,
    &'static str,
    Effect,
    &'static str,
    Field,
);

/// A flag as the parser knows it.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The name without dashes.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// What it is where not given.
    pub default: Value,
    /// What giving it does.
    pub effect: Effect,
    /// One sentence.
    pub help: &'static str,
    /// Under which heading `--help` shows it.
    pub section: String,
    /// Its field in the configuration file.
    pub field: Field,
    /// Whether a change of the field takes effect while the process runs.
    pub live: bool,
}

/// Why a flag has no effect, as a sentence's end.
fn reason(why: &str) -> String {
    match why.ends_with("-controller") {
        true => format!("{why} is not built yet"),
        false => why.to_owned(),
    }
}

impl Spec {
    fn of(flag: &Flag, section: &str) -> Self {
        let Flag(name, kind, default, effect, help, field) = *flag;
        // Upstream's table calls it a list; its values are pairs.
        let kind = if name == "feature-gates" {
            Kind::Gates
        } else {
            kind
        };
        Self {
            name,
            kind,
            default: Value::default(kind, default),
            effect,
            help,
            section: section.to_owned(),
            field,
            live: upstream::LIVE.contains(&name),
        }
    }
}

/// All flags: upstream's, those that controllers declare, ours.
pub fn flags(descriptors: &[Descriptor]) -> Vec<Spec> {
    let mut specs = Vec::new();
    for (section, flags) in upstream::SECTIONS {
        specs.extend(flags.iter().map(|flag| Spec::of(flag, section)));
    }
    for descriptor in descriptors {
        for flag in &descriptor.flags {
            let (kind, default) = declared(&flag.default);
            // One that reads the value asks by the declared name.
            assert!(
                !flag.name.contains('_'),
                "--{} is declared with _: a given name is read with - alone",
                flag.name
            );
            match specs.iter_mut().find(|spec| spec.name == flag.name) {
                Some(spec) => {
                    spec.effect = Effect::Acts;
                    spec.default = default;
                    spec.kind = kind;
                    spec.help = flag.help;
                }
                None => specs.push(Spec {
                    name: flag.name,
                    kind,
                    default,
                    effect: Effect::Acts,
                    help: flag.help,
                    section: capitalised(descriptor.name),
                    field: upstream::declared_field(flag.name),
                    live: false,
                }),
            }
        }
        let workers = descriptor.workers.map(|(name, _)| name);
        for spec in specs.iter_mut().filter(|spec| workers == Some(spec.name)) {
            spec.live = true;
        }
    }
    specs.extend(upstream::FILE.iter().map(|flag| Spec::of(flag, "Misc")));
    specs.extend(upstream::FLEET.iter().map(|flag| Spec::of(flag, "Fleet")));
    specs.extend(upstream::GLOBAL.iter().map(|flag| Spec::of(flag, "Global")));
    specs
}

fn declared(default: &FlagDefault) -> (Kind, Value) {
    match default {
        FlagDefault::Int(number) => (Kind::Int32, Value::Int(*number)),
        FlagDefault::Float(number) => (Kind::Float, Value::Float(*number)),
        FlagDefault::Bool(truth) => (Kind::Bool, Value::Bool(*truth)),
        FlagDefault::Duration(duration) => {
            let nanos = i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
            (Kind::Duration, Value::Duration(nanos))
        }
        FlagDefault::Text(text) => (Kind::Text, Value::Text((*text).to_owned())),
        FlagDefault::File => (Kind::Text, Value::Text(String::new())),
    }
}

fn capitalised(name: &str) -> String {
    let mut chars = name.chars();
    chars
        .next()
        .map(|first| first.to_ascii_uppercase().to_string() + chars.as_str())
        .unwrap_or_default()
}

/// Why the command line can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such flag.
    #[error("unknown flag: {flag}{}", suggestion.as_ref().map(|name| format!(" (did you mean --{name}?)")).unwrap_or_default())]
    Unknown {
        /// The flag as it was given.
        flag: String,
        /// The name that is most like it.
        suggestion: Option<String>,
    },
    /// The value is missing.
    #[error("flag needs an argument: {flag} (expected {expected})")]
    Missing {
        /// The flag as it was given.
        flag: String,
        /// What would do.
        expected: &'static str,
    },
    /// The value is of another type.
    #[error("invalid argument {value:?} for {flag:?} flag: expected {expected}")]
    Value {
        /// The flag as it was given.
        flag: String,
        /// The value as it was given.
        value: String,
        /// What would do.
        expected: &'static str,
    },
    /// Words that are no flags.
    #[error("no arguments are taken but flags, got {0:?}")]
    Arguments(Vec<String>),
}

/// What the command line asks for.
#[derive(Clone, Debug)]
pub enum Parsed {
    /// To run with these values.
    Run(Values),
    /// To print this text and end.
    Print(String),
}

/// Who gave a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Flag,
    /// The configuration file.
    File,
    /// Both. Maps have the entries of either, all else is the flag's.
    Both,
}

/// The flags' values by name.
#[derive(Clone, Debug)]
pub struct Values {
    specs: Vec<Spec>,
    values: BTreeMap<&'static str, Value>,
    given: BTreeMap<&'static str, Origin>,
}

/// Reads the command line, without the program's name.
///
/// # Errors
/// On the first word that can't be understood.
pub fn parse<I, S>(specs: Vec<Spec>, words: I) -> Result<Parsed, Error>
where
    I: IntoIterator<Item = S>,
    S: Into<String>,
{
    let mut values = Values {
        values: specs
            .iter()
            .map(|spec| (spec.name, spec.default.clone()))
            .collect(),
        given: BTreeMap::new(),
        specs,
    };
    let mut words = words.into_iter().map(Into::into);
    let mut others = Vec::new();
    while let Some(word) = words.next() {
        if word == "--" {
            others.extend(words.by_ref());
        } else if let Some(long) = word.strip_prefix("--") {
            let (name, joined) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (long, None),
            };
            values.take(&format!("--{name}"), name, joined, &mut words)?;
        } else if word.len() > 1 && word.starts_with('-') {
            short(&mut values, &word, &mut words)?;
        } else {
            others.push(word);
        }
    }
    if !others.is_empty() {
        return Err(Error::Arguments(others));
    }
    if values.bool("help") {
        return Ok(Parsed::Print(help(&values.specs)));
    }
    match values.text("version") {
        "false" | "0" | "f" => Ok(Parsed::Run(values)),
        "true" | "1" | "t" => Ok(Parsed::Print(version())),
        "raw" => Ok(Parsed::Print(version_raw())),
        other => Err(Error::Value {
            flag: "--version".to_owned(),
            value: other.to_owned(),
            expected: "true, false or raw",
        }),
    }
}

/// One-letter flags: `-v=4`, `-v4`, `-v 4`, `-h`.
fn short(
    values: &mut Values,
    word: &str,
    words: &mut dyn Iterator<Item = String>,
) -> Result<(), Error> {
    let mut chars = word[1..].chars();
    let letter = chars.next().unwrap_or_default();
    let rest = chars.as_str();
    match letter {
        'h' if rest.is_empty() => values.take("-h", "help", None, words),
        'v' => {
            let joined =
                (!rest.is_empty()).then(|| rest.strip_prefix('=').unwrap_or(rest).to_owned());
            values.take("-v, --v", "v", joined, words)
        }
        _ => Err(Error::Unknown {
            flag: word.to_owned(),
            suggestion: suggestion(&values.specs, word.trim_start_matches('-')),
        }),
    }
}

/// The known name that is most like what was given, if any is.
fn suggestion(specs: &[Spec], name: &str) -> Option<String> {
    /// Below it, two names have hardly more in common than two words of any language.
    const LIKENESS_MIN: f64 = 0.8;
    let name = name.split('=').next().unwrap_or_default();
    let like = |spec: &Spec| {
        (
            strsim::normalized_damerau_levenshtein(name, spec.name),
            spec.name,
        )
    };
    let prefix = specs
        .iter()
        .map(|spec| spec.name)
        .find(|known| name.len() > 3 && known.starts_with(name));
    let near = specs
        .iter()
        .map(like)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .map(|(_, name)| name);
    near.or(prefix).map(str::to_owned)
}

impl Values {
    fn take(
        &mut self,
        shown: &str,
        name: &str,
        joined: Option<String>,
        words: &mut dyn Iterator<Item = String>,
    ) -> Result<(), Error> {
        let name = name.replace('_', "-");
        let Some(spec) = self.specs.iter().find(|spec| spec.name == name) else {
            return Err(Error::Unknown {
                flag: shown.to_owned(),
                suggestion: suggestion(&self.specs, &name),
            });
        };
        let text = match (joined, spec.kind) {
            (Some(value), _) => value,
            (None, Kind::Bool | Kind::Version) => "true".to_owned(),
            (None, kind) => words.next().ok_or_else(|| Error::Missing {
                flag: shown.to_owned(),
                expected: if kind.label().is_empty() {
                    "a value"
                } else {
                    kind.label()
                },
            })?,
        };
        let value = Value::parse(spec.kind, &text).map_err(|expected| Error::Value {
            flag: shown.to_owned(),
            value: text,
            expected,
        })?;
        // The first occurrence replaces the default, later ones add to it.
        match self.given.insert(spec.name, Origin::Flag) {
            None => {
                self.values.insert(spec.name, value);
            }
            Some(_) => {
                let old = self
                    .values
                    .entry(spec.name)
                    .or_insert_with(|| value.clone());
                old.merge(value);
            }
        }
        Ok(())
    }

    /// Whether the flag was given at all, on the command line or in the file.
    pub fn given(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    /// Who gave the flag's value; `None` where it is the default.
    pub fn origin(&self, name: &str) -> Option<Origin> {
        self.given.get(name).copied()
    }

    /// Puts the values of a configuration file beneath those of the command line, as the kubelet does: a flag
    /// goes before the file, and a map has the entries of both, the flag's before those of the file.
    pub fn beneath(&mut self, settings: impl IntoIterator<Item = Setting>) {
        for Setting {
            flag, mut value, ..
        } in settings
        {
            if !self.given(flag) {
                self.given.insert(flag, Origin::File);
                self.values.insert(flag, value);
                continue;
            }
            self.given.insert(flag, Origin::Both);
            if let (Value::Map(_), Some(of_flag @ Value::Map(_))) =
                (&value, self.values.get(flag).cloned())
            {
                value.merge(of_flag);
                self.values.insert(flag, value);
            }
        }
    }

    /// The flags that go before a field of the file.
    pub fn overriding(&self) -> Vec<&'static str> {
        let both = self
            .given
            .iter()
            .filter(|(_, origin)| **origin == Origin::Both);
        both.map(|(name, _)| *name)
            .filter(|name| !matches!(self.get(name), Value::Map(_)))
            .collect()
    }

    /// The flags of the table.
    pub fn specs(&self) -> &[Spec] {
        &self.specs
    }

    /// The flags whose values differ from those of another command line and file.
    pub fn differing<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a Spec> {
        let differs = |spec: &&Spec| self.values.get(spec.name) != other.values.get(spec.name);
        self.specs.iter().filter(differs)
    }

    /// These values, with those of some flags taken from another command line and file.
    #[must_use]
    pub fn with<'n>(&self, names: impl IntoIterator<Item = &'n str>, from: &Self) -> Self {
        let mut values = self.clone();
        for name in names {
            if let Some((name, value)) = from.values.get_key_value(name) {
                values.values.insert(name, value.clone());
                match from.given.get(name) {
                    Some(origin) => values.given.insert(name, *origin),
                    None => values.given.remove(name),
                };
            }
        }
        values
    }

    /// The flag's value. Panics where there is no such flag: a mistake in this program.
    pub fn get(&self, name: &str) -> &Value {
        self.values
            .get(name)
            .unwrap_or_else(|| panic!("there is no flag --{name}"))
    }

    /// true or false. Panics where the flag is of another type.
    pub fn bool(&self, name: &str) -> bool {
        match self.get(name) {
            Value::Bool(truth) => *truth,
            other => panic!("--{name} is {other:?}"),
        }
    }

    /// A whole number. Panics where the flag is of another type.
    pub fn int(&self, name: &str) -> i64 {
        match self.get(name) {
            Value::Int(number) => *number,
            other => panic!("--{name} is {other:?}"),
        }
    }

    /// A number. Panics where the flag is of another type.
    pub fn float(&self, name: &str) -> f64 {
        match self.get(name) {
            Value::Float(number) => *number,
            other => panic!("--{name} is {other:?}"),
        }
    }

    /// A text. Panics where the flag is of another type.
    pub fn text(&self, name: &str) -> &str {
        match self.get(name) {
            Value::Text(text) => text,
            other => panic!("--{name} is {other:?}"),
        }
    }

    /// A text; `None` where it is empty.
    pub fn some(&self, name: &str) -> Option<&str> {
        Some(self.text(name)).filter(|text| !text.is_empty())
    }

    /// Several texts. Panics where the flag is of another type.
    pub fn list(&self, name: &str) -> &[String] {
        match self.get(name) {
            Value::List(list) => list,
            other => panic!("--{name} is {other:?}"),
        }
    }

    /// Texts by name. Panics where the flag is of another type.
    pub fn map(&self, name: &str) -> &BTreeMap<String, String> {
        match self.get(name) {
            Value::Map(map) => map,
            other => panic!("--{name} is {other:?}"),
        }
    }

    /// A duration; a negative one is none at all. Panics where the flag is of another type.
    pub fn duration(&self, name: &str) -> Duration {
        match self.get(name) {
            Value::Duration(nanos) => {
                Duration::from_nanos(u64::try_from(*nanos).unwrap_or_default())
            }
            other => panic!("--{name} is {other:?}"),
        }
    }

    /// An IP address. Panics where the flag is of another type.
    pub fn ip(&self, name: &str) -> IpAddr {
        self.text(name)
            .parse()
            .unwrap_or_else(|_| panic!("--{name} is no address"))
    }

    /// A value as `/flagz` and `--help` write it.
    pub fn show(&self, name: &str) -> String {
        let spec = self.specs.iter().find(|spec| spec.name == name);
        spec.map(|spec| self.get(name).show(spec.kind))
            .unwrap_or_default()
    }

    /// `/flagz`: each flag and its value, sorted.
    pub fn flagz(&self) -> BTreeMap<&'static str, String> {
        let names = self.values.keys();
        names.map(|name| (*name, self.show(name))).collect()
    }

    /// The deprecated flags that were given, a warning for each, as pflag words it.
    pub fn deprecations(&self) -> Vec<String> {
        let given = self.given.keys().filter(|name| self.is_asked_for(name));
        given
            .filter_map(|name| {
                let why = upstream::deprecation(name)?;
                Some(format!("Flag --{name} has been deprecated, {why}"))
            })
            .collect()
    }

    /// The flags that were given and have no effect, with the reason.
    pub fn without_effect(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.specs.iter().filter_map(|spec| match spec.effect {
            Effect::Without(why) if self.is_asked_for(spec.name) => Some((spec.name, reason(why))),
            _ => None,
        })
    }

    /// Whether somebody wants something by the flag: a file may repeat all defaults, as one from `/configz`
    /// does.
    fn is_asked_for(&self, name: &str) -> bool {
        match self.origin(name) {
            Some(Origin::Flag | Origin::Both) => true,
            Some(Origin::File) => self
                .specs
                .iter()
                .any(|spec| spec.name == name && spec.default != *self.get(name)),
            None => false,
        }
    }
}

/// `--version`.
pub fn version() -> String {
    format!(
        "Manifold v{} (kube-controller-manager 1.36)\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// `--version=raw`.
pub fn version_raw() -> String {
    format!(
        "version.Info{{Major:\"1\", Minor:\"36\", GitVersion:{:?}, Manifold:{:?}, Compiler:\"rustc\", Platform:{:?}}}\n",
        version::GIT_VERSION,
        env!("CARGO_PKG_VERSION"),
        version::platform(),
    )
}

/// `--help`, in upstream's sections.
pub fn help(specs: &[Spec]) -> String {
    let mut text = "Manifold does the work of kube-controller-manager with every replica at once. It takes the same flags,\n\
         and some of its own under \"Fleet\". Names may be written with _ for -.\n\n\
         Usage:\n  manifold [flags]\n  \
         manifold doctor [--pre]                  examines the cluster and the fleet: manifold doctor --help\n  \
         manifold companion --controllers=LIST    what kube-controller-manager runs beside: manifold companion --help\n  \
         manifold config from-flags|validate|diff|schema   the configuration file: manifold config --help\n"
        .to_owned();
    let mut sections: Vec<&str> = Vec::new();
    for spec in specs {
        if !sections.contains(&spec.section.as_str()) {
            sections.push(&spec.section);
        }
    }
    for section in sections {
        // Writing into a String can't fail, here and below.
        let _ = write!(text, "\n{section} flags:\n\n");
        let of_section: Vec<&Spec> = specs
            .iter()
            .filter(|spec| spec.section == section)
            .collect();
        let head = |spec: &Spec| {
            let short = match spec.name {
                "v" => "-v, ",
                "help" => "-h, ",
                _ => "    ",
            };
            format!("  {short}--{} {}", spec.name, spec.kind.label())
                .trim_end()
                .to_owned()
        };
        let width = of_section
            .iter()
            .map(|spec| head(spec).len())
            .max()
            .unwrap_or_default();
        for spec in of_section {
            if upstream::deprecation(spec.name).is_some() {
                continue;
            }
            let default = match &spec.default {
                Value::Bool(false) | Value::Int(0) | Value::Duration(0) => String::new(),
                Value::Text(text) if text.is_empty() || spec.kind == Kind::Version => String::new(),
                Value::Text(text) if spec.kind == Kind::Text => format!(" (default {text:?})"),
                Value::List(list) if list.is_empty() => String::new(),
                Value::Map(map) if map.is_empty() => String::new(),
                other => format!(" (default {})", other.show(spec.kind)),
            };
            let effect = match spec.effect {
                Effect::Without(why) => format!(" [without effect: {}]", reason(why)),
                _ => String::new(),
            };
            let _ = writeln!(
                text,
                "{:width$}   {}{default}{effect}",
                head(spec),
                spec.help
            );
        }
        if section == "Generic" {
            let names: Vec<&str> = upstream::CONTROLLERS
                .iter()
                .map(|controller| controller.0)
                .collect();
            let _ = writeln!(text, "\n      Controllers: {}", names.join(", "));
        }
    }
    text
}

/// A controller's canonical name from a canonical or an old one; `None` where there is no such controller.
pub fn canonical<'a>(name: &str, descriptors: &'a [Descriptor]) -> Option<&'a str> {
    let declared = descriptors
        .iter()
        .find(|one| one.name == name || one.aliases.contains(&name))
        .map(|one| one.name);
    declared.or_else(|| {
        let known = upstream::CONTROLLERS
            .iter()
            .find(|one| one.0 == name || one.1.contains(&name));
        known.map(|one| one.0)
    })
}

/// An entry of `--controllers` with the canonical name.
pub fn canonical_entry(entry: &str) -> String {
    let (sign, name) = match entry.strip_prefix('-') {
        Some(name) => ("-", name),
        None => ("", entry),
    };
    format!("{sign}{}", canonical(name, &[]).unwrap_or(name))
}

/// The name that is most like an unknown controller's.
pub fn like_controller(name: &str) -> Option<&'static str> {
    let names = upstream::CONTROLLERS
        .iter()
        .flat_map(|one| one.1.iter().copied().chain([one.0]));
    names
        .map(|known| (strsim::jaro_winkler(name, known), known))
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .filter(|(likeness, _)| *likeness > 0.85)
        .map(|(_, known)| known)
}

/// Whether upstream's `*` includes the controller.
pub fn on_by_default(name: &str) -> bool {
    upstream::CONTROLLERS
        .iter()
        .all(|one| one.0 != name || one.2)
}

/// What was asked of the feature gates, checked as upstream checks it.
///
/// # Errors
/// One sentence for the first gate that is unknown, fixed, neither on nor off, or on without a gate that it
/// depends on.
pub fn feature_gates(
    given: &BTreeMap<String, String>,
) -> Result<BTreeMap<&'static str, bool>, String> {
    let mut set = BTreeMap::new();
    for (key, text) in given {
        let name = match key.split_once(':') {
            Some(("kube", name)) => name,
            Some((component, _)) => {
                return Err(format!(
                    "component not registered: {component} (only kube has gates here)"
                ));
            }
            None => key,
        };
        // Of an unknown gate rather than of its value.
        if gates::find(name).is_none() {
            return Err(gates::unknown(name));
        }
        let Some(on) = value::truth(text) else {
            return Err(format!(
                "invalid value of {name}={text}: expected true or false"
            ));
        };
        let gate = gates::settable(name, on)?;
        set.insert(gate.0, on);
    }
    for (name, dependencies) in gates::DEPENDENCIES {
        if !gate(name, &set) {
            continue;
        }
        let off: Vec<&str> = dependencies
            .iter()
            .copied()
            .filter(|dependency| !gate(dependency, &set))
            .collect();
        if !off.is_empty() {
            return Err(format!(
                "{name} is enabled, but depends on features that are disabled: [{}]",
                off.join(" ")
            ));
        }
    }
    Ok(set)
}

/// Whether a gate is on, given what was set. `AllAlpha` and `AllBeta` stand for those of their stage that
/// were not set. Panics where there is no such gate: a mistake in this program.
pub fn gate(name: &str, set: &BTreeMap<&'static str, bool>) -> bool {
    let gate = gates::GATES
        .iter()
        .find(|gate| gate.0 == name)
        .unwrap_or_else(|| panic!("there is no feature gate {name}"));
    let all = match gate.1 {
        gates::Stage::Alpha => set.get("AllAlpha"),
        gates::Stage::Beta => set.get("AllBeta"),
        gates::Stage::Ga | gates::Stage::Deprecated => None,
    };
    set.get(name).or(all).copied().unwrap_or(gate.2)
}

/// The gates that can't be set otherwise than they are.
pub fn fixed_gates() -> impl Iterator<Item = &'static str> {
    let fixed = gates::GATES.iter().filter(|gate| gate.3);
    fixed.map(|gate| gate.0)
}

/// Each gate with its stage, as upstream's metrics write it, and whether it is on, given what was set.
pub fn gate_states(
    set: &BTreeMap<&'static str, bool>,
) -> impl Iterator<Item = (&'static str, &'static str, bool)> {
    gates::GATES.iter().map(|known| {
        let stage = match known.1 {
            gates::Stage::Alpha => "ALPHA",
            gates::Stage::Beta => "BETA",
            gates::Stage::Ga => "",
            gates::Stage::Deprecated => "DEPRECATED",
        };
        (known.0, stage, gate(known.0, set))
    })
}

/// Certificate, key and names of `cert,key:name,name`, which the parser has checked.
pub fn named_cert(text: &str) -> (&str, &str, Vec<&str>) {
    value::split_named_cert(text)
}

/// `pattern=N,…` of `--vmodule`, which the parser has checked.
pub fn module_levels(text: &str) -> Vec<(String, i64)> {
    value::patterns(text).unwrap_or_default()
}

/// A duration as Go writes it.
pub fn go_duration(duration: Duration) -> String {
    value::show_duration(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
pub(crate) mod tests;
