//! What can be called: the standard library and the libraries of Kubernetes that an expression of a stored
//! policy may use. Declared as text; a line is a function and one of its signatures.

use std::{collections::HashMap, sync::LazyLock};

use super::types::Type;

/// One signature of a function.
#[derive(Debug)]
pub struct Overload {
    /// Whether it is called on a receiver, the first of the arguments.
    pub is_method: bool,
    /// The types of its arguments.
    pub args: Vec<Type>,
    /// The type of its result.
    pub result: Type,
    /// How many parameters its types have.
    pub params: u32,
}

/// What types can be put in an order.
const ORDERED: [&str; 8] = [
    "int",
    "uint",
    "double",
    "bool",
    "duration",
    "timestamp",
    "string",
    "bytes",
];
/// What types can be summed up.
const SUMMABLE: [&str; 4] = ["int", "uint", "double", "duration"];

/// Parameters are `A` to `D`. `x.f` in front of the arguments declares a method of receiver `x`. The order
/// is that in which the libraries are loaded: the first matching signature determines the result.
const DECLARATIONS: &str = "
_?_:_ : (bool, A, A) -> A
_&&_ : (bool, bool) -> bool
_||_ : (bool, bool) -> bool
!_ : (bool) -> bool
@not_strictly_false : (bool) -> bool
_==_ : (A, A) -> bool
_!=_ : (A, A) -> bool
_+_ : (bytes, bytes) -> bytes
_+_ : (double, double) -> double
_+_ : (duration, duration) -> duration
_+_ : (duration, timestamp) -> timestamp
_+_ : (timestamp, duration) -> timestamp
_+_ : (int, int) -> int
_+_ : (list(A), list(A)) -> list(A)
_+_ : (string, string) -> string
_+_ : (uint, uint) -> uint
_/_ : (double, double) -> double
_/_ : (int, int) -> int
_/_ : (uint, uint) -> uint
_%_ : (int, int) -> int
_%_ : (uint, uint) -> uint
_*_ : (double, double) -> double
_*_ : (int, int) -> int
_*_ : (uint, uint) -> uint
-_ : (double) -> double
-_ : (int) -> int
_-_ : (double, double) -> double
_-_ : (duration, duration) -> duration
_-_ : (int, int) -> int
_-_ : (timestamp, duration) -> timestamp
_-_ : (timestamp, timestamp) -> duration
_-_ : (uint, uint) -> uint
_[_] : (list(A), int) -> A
_[_] : (map(A, B), A) -> B
@in : (A, list(A)) -> bool
@in : (A, map(A, B)) -> bool
size : (bytes) -> int
size : bytes.() -> int
size : (list(A)) -> int
size : list(A).() -> int
size : (map(A, B)) -> int
size : map(A, B).() -> int
size : (string) -> int
size : string.() -> int
type : (A) -> type(A)
bool : (bool) -> bool
bool : (string) -> bool
bytes : (bytes) -> bytes
bytes : (string) -> bytes
double : (double) -> double
double : (int) -> double
double : (string) -> double
double : (uint) -> double
duration : (duration) -> duration
duration : (int) -> duration
duration : (string) -> duration
dyn : (A) -> dyn
int : (int) -> int
int : (double) -> int
int : (duration) -> int
int : (string) -> int
int : (timestamp) -> int
int : (uint) -> int
string : (string) -> string
string : (bool) -> string
string : (bytes) -> string
string : (double) -> string
string : (duration) -> string
string : (int) -> string
string : (timestamp) -> string
string : (uint) -> string
timestamp : (timestamp) -> timestamp
timestamp : (int) -> timestamp
timestamp : (string) -> timestamp
uint : (uint) -> uint
uint : (double) -> uint
uint : (int) -> uint
uint : (string) -> uint
contains : string.(string) -> bool
endsWith : string.(string) -> bool
startsWith : string.(string) -> bool
matches : (string, string) -> bool
matches : string.(string) -> bool
getFullYear : timestamp.() -> int
getFullYear : timestamp.(string) -> int
getMonth : timestamp.() -> int
getMonth : timestamp.(string) -> int
getDayOfYear : timestamp.() -> int
getDayOfYear : timestamp.(string) -> int
getDayOfMonth : timestamp.() -> int
getDayOfMonth : timestamp.(string) -> int
getDate : timestamp.() -> int
getDate : timestamp.(string) -> int
getDayOfWeek : timestamp.() -> int
getDayOfWeek : timestamp.(string) -> int
getHours : timestamp.() -> int
getHours : timestamp.(string) -> int
getHours : duration.() -> int
getMinutes : timestamp.() -> int
getMinutes : timestamp.(string) -> int
getMinutes : duration.() -> int
getSeconds : timestamp.() -> int
getSeconds : timestamp.(string) -> int
getSeconds : duration.() -> int
getMilliseconds : timestamp.() -> int
getMilliseconds : timestamp.(string) -> int
getMilliseconds : duration.() -> int
url : (string) -> kubernetes.URL
getScheme : kubernetes.URL.() -> string
getHost : kubernetes.URL.() -> string
getHostname : kubernetes.URL.() -> string
getPort : kubernetes.URL.() -> string
getEscapedPath : kubernetes.URL.() -> string
getQuery : kubernetes.URL.() -> map(string, list(string))
isURL : (string) -> bool
find : string.(string) -> string
findAll : string.(string) -> list(string)
findAll : string.(string, int) -> list(string)
@ordered isSorted : list(O).() -> bool
@summable sum : list(O).() -> O
@ordered max : list(O).() -> O
@ordered min : list(O).() -> O
indexOf : list(A).(A) -> int
lastIndexOf : list(A).(A) -> int
path : kubernetes.authorization.Authorizer.(string) -> kubernetes.authorization.PathCheck
group : kubernetes.authorization.Authorizer.(string) -> kubernetes.authorization.GroupCheck
serviceAccount : kubernetes.authorization.Authorizer.(string, string) -> kubernetes.authorization.Authorizer
resource : kubernetes.authorization.GroupCheck.(string) -> kubernetes.authorization.ResourceCheck
subresource : kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck
namespace : kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck
name : kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck
check : kubernetes.authorization.PathCheck.(string) -> kubernetes.authorization.Decision
check : kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.Decision
errored : kubernetes.authorization.Decision.() -> bool
error : kubernetes.authorization.Decision.() -> string
allowed : kubernetes.authorization.Decision.() -> bool
reason : kubernetes.authorization.Decision.() -> string
optional.of : (A) -> optional(A)
optional.ofNonZeroValue : (A) -> optional(A)
optional.none : () -> optional(A)
value : optional(A).() -> A
hasValue : optional(A).() -> bool
or : optional(A).(optional(A)) -> optional(A)
orValue : optional(A).(A) -> A
_[?_] : (list(A), int) -> optional(A)
_[?_] : (optional(list(A)), int) -> optional(A)
_[?_] : (map(A, B), A) -> optional(B)
_[?_] : (optional(map(A, B)), A) -> optional(B)
_[_] : (optional(list(A)), int) -> optional(A)
_[_] : (optional(map(A, B)), A) -> optional(B)
last : list(A).() -> optional(A)
first : list(A).() -> optional(A)
optional.unwrap : (list(optional(A))) -> list(A)
unwrapOpt : list(optional(A)).() -> list(A)
quantity : (string) -> kubernetes.Quantity
isQuantity : (string) -> bool
sign : (kubernetes.Quantity) -> int
isGreaterThan : kubernetes.Quantity.(kubernetes.Quantity) -> bool
isLessThan : kubernetes.Quantity.(kubernetes.Quantity) -> bool
compareTo : kubernetes.Quantity.(kubernetes.Quantity) -> int
asApproximateFloat : kubernetes.Quantity.() -> double
asInteger : kubernetes.Quantity.() -> int
isInteger : kubernetes.Quantity.() -> bool
add : kubernetes.Quantity.(kubernetes.Quantity) -> kubernetes.Quantity
add : kubernetes.Quantity.(int) -> kubernetes.Quantity
sub : kubernetes.Quantity.(kubernetes.Quantity) -> kubernetes.Quantity
sub : kubernetes.Quantity.(int) -> kubernetes.Quantity
charAt : string.(int) -> string
indexOf : string.(string) -> int
indexOf : string.(string, int) -> int
lastIndexOf : string.(string) -> int
lastIndexOf : string.(string, int) -> int
lowerAscii : string.() -> string
replace : string.(string, string) -> string
replace : string.(string, string, int) -> string
split : string.(string) -> list(string)
split : string.(string, int) -> list(string)
substring : string.(int) -> string
substring : string.(int, int) -> string
trim : string.() -> string
upperAscii : string.() -> string
format : string.(list(dyn)) -> string
strings.quote : (string) -> string
join : list(string).() -> string
join : list(string).(string) -> string
sets.contains : (list(A), list(A)) -> bool
sets.equivalent : (list(A), list(A)) -> bool
sets.intersects : (list(A), list(A)) -> bool
ip : (string) -> net.IP
family : net.IP.() -> int
ip.isCanonical : (string) -> bool
isUnspecified : net.IP.() -> bool
isLoopback : net.IP.() -> bool
isLinkLocalMulticast : net.IP.() -> bool
isLinkLocalUnicast : net.IP.() -> bool
isGlobalUnicast : net.IP.() -> bool
isIP : (string) -> bool
string : (net.IP) -> string
cidr : (string) -> net.CIDR
containsIP : net.CIDR.(string) -> bool
containsIP : net.CIDR.(net.IP) -> bool
containsCIDR : net.CIDR.(string) -> bool
containsCIDR : net.CIDR.(net.CIDR) -> bool
ip : net.CIDR.() -> net.IP
prefixLength : net.CIDR.() -> int
masked : net.CIDR.() -> net.CIDR
isCIDR : (string) -> bool
string : (net.CIDR) -> string
validate : kubernetes.NamedFormat.(string) -> optional(list(string))
format.named : (string) -> optional(kubernetes.NamedFormat)
format.dns1123Label : () -> kubernetes.NamedFormat
format.dns1123Subdomain : () -> kubernetes.NamedFormat
format.dns1035Label : () -> kubernetes.NamedFormat
format.qualifiedName : () -> kubernetes.NamedFormat
format.dns1123LabelPrefix : () -> kubernetes.NamedFormat
format.dns1123SubdomainPrefix : () -> kubernetes.NamedFormat
format.dns1035LabelPrefix : () -> kubernetes.NamedFormat
format.labelValue : () -> kubernetes.NamedFormat
format.uri : () -> kubernetes.NamedFormat
format.uuid : () -> kubernetes.NamedFormat
format.byte : () -> kubernetes.NamedFormat
format.date : () -> kubernetes.NamedFormat
format.datetime : () -> kubernetes.NamedFormat
fieldSelector : kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck
labelSelector : kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck
cel.@mapInsert : (map(A, B), A, B) -> map(A, B)
cel.@mapInsert : (map(A, B), map(A, B)) -> map(A, B)
semver : (string) -> kubernetes.Semver
semver : (string, bool) -> kubernetes.Semver
isSemver : (string) -> bool
isSemver : (string, bool) -> bool
isGreaterThan : kubernetes.Semver.(kubernetes.Semver) -> bool
isLessThan : kubernetes.Semver.(kubernetes.Semver) -> bool
compareTo : kubernetes.Semver.(kubernetes.Semver) -> int
major : kubernetes.Semver.() -> int
minor : kubernetes.Semver.() -> int
patch : kubernetes.Semver.() -> int
slice : list(A).(int, int) -> list(A)
flatten : list(list(A)).() -> list(A)
flatten : list(dyn).(int) -> list(dyn)
@ordered sort : list(O).() -> list(O)
@ordered @sortByAssociatedKeys : list(A).(list(O)) -> list(A)
lists.range : (int) -> list(int)
reverse : list(A).() -> list(A)
distinct : list(A).() -> list(A)
";

/// The comparisons, of every ordered type with itself and of every numeric type with every other.
const COMPARISONS: [&str; 4] = ["_<_", "_<=_", "_>_", "_>=_"];
const COMPARABLE: [(&str, &str); 14] = [
    ("bool", "bool"),
    ("int", "int"),
    ("int", "double"),
    ("int", "uint"),
    ("uint", "uint"),
    ("uint", "double"),
    ("uint", "int"),
    ("double", "double"),
    ("double", "int"),
    ("double", "uint"),
    ("string", "string"),
    ("bytes", "bytes"),
    ("timestamp", "timestamp"),
    ("duration", "duration"),
];

static FUNCTIONS: LazyLock<HashMap<String, Vec<Overload>>> = LazyLock::new(|| {
    let mut functions: HashMap<String, Vec<Overload>> = HashMap::new();
    for (name, overload) in declared() {
        functions.entry(name).or_default().push(overload);
    }
    functions
});

/// The signatures of a function; `None` where there is none of the name.
pub fn overloads(name: &str) -> Option<&'static [Overload]> {
    FUNCTIONS.get(name).map(Vec::as_slice)
}

fn declared() -> Vec<(String, Overload)> {
    let mut all = Vec::new();
    for line in DECLARATIONS.lines().filter(|line| !line.is_empty()) {
        let template = [("@ordered ", &ORDERED[..]), ("@summable ", &SUMMABLE[..])];
        let found = template.iter().find_map(|(prefix, types)| {
            let line = line.strip_prefix(prefix)?;
            Some((line, *types))
        });
        match found {
            None => all.extend(declaration(line, "")),
            Some((line, types)) => {
                all.extend(types.iter().filter_map(|of| declaration(line, of)));
            }
        }
    }
    for name in COMPARISONS {
        for (left, right) in COMPARABLE {
            all.extend(declaration(
                &format!("{name} : ({left}, {right}) -> bool"),
                "",
            ));
        }
    }
    all
}

/// Reads one line; `ordered` is substituted for `O`.
fn declaration(line: &str, ordered: &str) -> Option<(String, Overload)> {
    let (name, signature) = line.split_once(" : ")?;
    let (call, result) = signature.rsplit_once(" -> ")?;
    let mut params = 0;
    let mut reader = Reader {
        rest: call,
        ordered,
        params: &mut params,
    };
    let is_method = !call.starts_with('(');
    let mut args = Vec::new();
    if is_method {
        args.push(reader.of()?);
        reader.rest = reader.rest.strip_prefix('.')?;
    }
    args.extend(reader.list()?);
    reader.rest = result;
    let result = reader.of()?;
    Some((
        name.to_owned(),
        Overload {
            is_method,
            args,
            result,
            params,
        },
    ))
}

struct Reader<'a> {
    rest: &'a str,
    ordered: &'a str,
    params: &'a mut u32,
}

impl Reader<'_> {
    /// Types in brackets.
    fn list(&mut self) -> Option<Vec<Type>> {
        self.rest = self.rest.strip_prefix('(')?;
        let mut types = Vec::new();
        loop {
            if let Some(rest) = self.rest.strip_prefix(')') {
                self.rest = rest;
                return Some(types);
            }
            self.rest = self.rest.strip_prefix(", ").unwrap_or(self.rest);
            types.push(self.of()?);
        }
    }

    fn of(&mut self) -> Option<Type> {
        let end = self.rest.find(['(', ')', ',']).unwrap_or(self.rest.len());
        let name = self.rest[..end].trim_end_matches('.');
        self.rest = &self.rest[name.len()..];
        if let Some(number) = ["A", "B", "C", "D"].iter().position(|param| *param == name) {
            let number = u32::try_from(number).ok()?;
            *self.params = (*self.params).max(number + 1);
            return Some(Type::Param(number));
        }
        let mut inner = match name {
            "list" | "map" | "optional" | "type" => self.list()?.into_iter(),
            _ => Vec::new().into_iter(),
        };
        let name = if name == "O" { self.ordered } else { name };
        Some(match name {
            "list" => Type::list(inner.next()?),
            "map" => Type::map(inner.next()?, inner.next()?),
            "optional" => Type::optional(inner.next()?),
            "type" => Type::of(inner.next()?),
            "bool" => Type::Bool,
            "bytes" => Type::Bytes,
            "double" => Type::Double,
            "duration" => Type::Duration,
            "dyn" => Type::Dyn,
            "int" => Type::Int,
            "string" => Type::String,
            "timestamp" => Type::Timestamp,
            "uint" => Type::Uint,
            "net.IP" | "net.CIDR" => Type::Opaque(name.into(), [].into()),
            _ => Type::object(name),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_declaration_is_read() {
        let lines = DECLARATIONS.lines().filter(|line| !line.is_empty());
        let signatures = lines.map(|line| match line {
            _ if line.starts_with("@ordered ") => ORDERED.len(),
            _ if line.starts_with("@summable ") => SUMMABLE.len(),
            _ => 1,
        });
        let comparisons = COMPARISONS.len() * COMPARABLE.len();
        assert_eq!(declared().len(), signatures.sum::<usize>() + comparisons);
    }

    #[test]
    fn a_declaration_names_its_receiver_its_arguments_and_its_result() {
        let all = overloads("orValue").unwrap_or_default();
        assert_eq!(all.len(), 1);
        assert!(all[0].is_method);
        assert_eq!(all[0].params, 1);
        assert_eq!(
            all[0].args,
            [Type::optional(Type::Param(0)), Type::Param(0)]
        );
        assert_eq!(all[0].result, Type::Param(0));
    }
}
