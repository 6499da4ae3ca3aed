//! Types, how they are written in errors, and which may stand for which.

use std::sync::Arc;

/// A type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// What is not known before evaluation.
    Dyn,
    /// Of an expression that has an error already.
    Error,
    /// `null`
    Null,
    /// `bool`
    Bool,
    /// `bytes`
    Bytes,
    /// `double`
    Double,
    /// `duration`
    Duration,
    /// `int`
    Int,
    /// `string`
    String,
    /// `timestamp`
    Timestamp,
    /// `uint`
    Uint,
    /// The type of a type; without one where it is `type` itself.
    Of(Option<Arc<Type>>),
    /// `list(element)`
    List(Arc<Type>),
    /// `map(key, value)`
    Map(Arc<Type>, Arc<Type>),
    /// A type of a library, as `optional_type(int)` and `net.IP`.
    Opaque(Arc<str>, Arc<[Type]>),
    /// An object by its name; an environment knows its fields.
    Struct(Arc<str>),
    /// A type parameter. In a declaration it counts the declaration's parameters.
    Param(u32),
}

/// The parameters of `list` and `map` where these are named as types. Those of an expression are counted from
/// there on.
const NAMED: [&str; 2] = ["A", "B"];
/// The name of optional types.
const OPTIONAL: &str = "optional_type";

impl Type {
    /// A list.
    pub fn list(element: Self) -> Self {
        Self::List(Arc::new(element))
    }

    /// A map.
    pub fn map(key: Self, value: Self) -> Self {
        Self::Map(Arc::new(key), Arc::new(value))
    }

    /// An optional value.
    pub fn optional(value: Self) -> Self {
        Self::Opaque(OPTIONAL.into(), [value].into())
    }

    /// An object type.
    pub fn object(name: &str) -> Self {
        Self::Struct(name.into())
    }

    /// The type of a type.
    pub fn of(inner: Self) -> Self {
        Self::Of(Some(Arc::new(inner)))
    }

    /// What an optional type holds.
    pub fn optional_value(&self) -> Option<&Self> {
        match self {
            Self::Opaque(name, params) if &**name == OPTIONAL => params.first(),
            _ => None,
        }
    }

    /// Whether anything may stand for it.
    pub fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn)
    }

    /// Whether any type may replace it, since nothing better is known or there is an error already.
    pub fn is_dyn_or_error(&self) -> bool {
        self.is_dyn() || matches!(self, Self::Error)
    }

    /// The parameters of a generic type.
    pub fn params(&self) -> Vec<&Self> {
        match self {
            Self::Of(Some(inner)) | Self::List(inner) => vec![inner],
            Self::Map(key, value) => vec![key, value],
            Self::Opaque(_, params) => params.iter().collect(),
            _ => Vec::new(),
        }
    }

    /// The name at run time, without parameters, as in errors of format strings.
    pub fn runtime_name(&self) -> String {
        match self {
            Self::Dyn => "dyn",
            Self::Error => "error",
            Self::Null => "null_type",
            Self::Bool => "bool",
            Self::Bytes => "bytes",
            Self::Double => "double",
            Self::Duration => "google.protobuf.Duration",
            Self::Int => "int",
            Self::String => "string",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::Uint => "uint",
            Self::Of(_) => "type",
            Self::List(_) => "list",
            Self::Map(..) => "map",
            Self::Opaque(name, _) | Self::Struct(name) => name,
            Self::Param(number) => {
                let number = *number as usize;
                return match NAMED.get(number) {
                    Some(name) => (*name).to_owned(),
                    None => format!("_var{}", number - NAMED.len()),
                };
            }
        }
        .to_owned()
    }
}

impl std::fmt::Display for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Error => f.write_str("!error!"),
            Self::Null => f.write_str("null"),
            Self::Duration => f.write_str("duration"),
            Self::Timestamp => f.write_str("timestamp"),
            _ => {
                f.write_str(&self.runtime_name())?;
                let params = self.params();
                if params.is_empty() {
                    return Ok(());
                }
                for (place, param) in params.into_iter().enumerate() {
                    write!(f, "{}{param}", if place == 0 { "(" } else { ", " })?;
                }
                f.write_str(")")
            }
        }
    }
}

/// Steps of unification and substitution for one expression. Types of an expression can grow with the power
/// of its size; one that needs more is not checked.
const STEPS_MAX: u32 = 2_000_000;

/// The bindings of type parameters, with a way back to an earlier state.
pub struct Bindings {
    bound: Vec<Option<Type>>,
    changes: Vec<(u32, Option<Type>)>,
    steps: u32,
}

impl Default for Bindings {
    fn default() -> Self {
        Self {
            bound: vec![None; NAMED.len()],
            changes: Vec::new(),
            steps: 0,
        }
    }
}

impl Bindings {
    /// A parameter of which nothing is known.
    pub fn fresh(&mut self) -> u32 {
        self.bound.push(None);
        u32::try_from(self.bound.len() - 1).unwrap_or(u32::MAX)
    }

    /// Whether more steps were taken than one expression may need; findings about types are void then.
    pub fn is_exhausted(&self) -> bool {
        self.steps > STEPS_MAX
    }

    /// Counts a step; whether there may be one.
    pub fn step(&mut self) -> bool {
        self.steps = self.steps.saturating_add(1);
        !self.is_exhausted()
    }

    fn find(&self, number: u32) -> Option<&Type> {
        self.bound.get(number as usize)?.as_ref()
    }

    fn bind(&mut self, number: u32, to: Type) {
        let slot = &mut self.bound[number as usize];
        self.changes.push((number, slot.replace(to)));
    }

    /// Whether each type of `from` is assignable to the one of `to` at its place; if not, nothing is bound.
    pub fn assign_all(&mut self, from: &[Type], to: &[Type]) -> bool {
        let before = self.changes.len();
        let fits = from.len() == to.len()
            && from
                .iter()
                .zip(to)
                .all(|(from, to)| self.is_assignable(from, to));
        if !fits {
            for (number, old) in self.changes.drain(before..).rev() {
                self.bound[number as usize] = old;
            }
        }
        fits
    }

    /// As [`Bindings::assign_all`] of one.
    pub fn assign(&mut self, from: &Type, to: &Type) -> bool {
        self.assign_all(std::slice::from_ref(from), std::slice::from_ref(to))
    }

    /// Both directions: cel-go unifies rather than assigns.
    fn is_assignable(&mut self, one: &Type, two: &Type) -> bool {
        if !self.step() {
            return true;
        }
        if let Type::Param(number) = two {
            match self.may_be(one, *number) {
                (true, _) => return true,
                (false, true) => return false,
                (false, false) => {}
            }
        }
        if let Type::Param(number) = one {
            return self.may_be(two, *number).0;
        }
        if one.is_dyn_or_error() || two.is_dyn_or_error() {
            return true;
        }
        if *one == Type::Null {
            return is_nullable(two);
        }
        if *two == Type::Null {
            return is_nullable(one);
        }
        match (one, two) {
            (Type::Of(_), Type::Of(_)) => true,
            (Type::List(one), Type::List(two)) => self.is_assignable(one, two),
            (Type::Map(key, value), Type::Map(other_key, other_value)) => {
                self.is_assignable(key, other_key) && self.is_assignable(value, other_value)
            }
            (Type::Opaque(name, params), Type::Opaque(other_name, other_params)) => {
                name == other_name
                    && params.len() == other_params.len()
                    && params
                        .iter()
                        .zip(&**other_params)
                        .all(|(one, two)| self.is_assignable(one, two))
            }
            (Type::Of(_) | Type::List(_) | Type::Map(..) | Type::Opaque(..), _) => false,
            _ => one == two,
        }
    }

    /// Whether a parameter may be `wanted`, and whether it is bound already.
    fn may_be(&mut self, wanted: &Type, number: u32) -> (bool, bool) {
        if *wanted == Type::Param(number) {
            return (true, true);
        }
        let Some(known) = self.find(number).cloned() else {
            let free = self.is_free_of(number, wanted);
            if free {
                self.bind(number, wanted.clone());
            }
            return (free, false);
        };
        if self.is_same(wanted, &known) {
            return (true, true);
        }
        if !self.is_assignable(wanted, &known) {
            return (false, true);
        }
        let general = match self.is_as_general(wanted, &known) {
            true => wanted.clone(),
            false => known,
        };
        if self.is_free_of(number, &general) {
            self.bind(number, general);
        }
        (true, true)
    }

    fn is_same(&mut self, one: &Type, two: &Type) -> bool {
        if !self.step() {
            return true;
        }
        match (one, two) {
            (Type::Of(Some(one)), Type::Of(Some(two))) | (Type::List(one), Type::List(two)) => {
                self.is_same(one, two)
            }
            (Type::Map(key, value), Type::Map(other_key, other_value)) => {
                self.is_same(key, other_key) && self.is_same(value, other_value)
            }
            (Type::Opaque(name, params), Type::Opaque(other_name, others)) => {
                name == other_name
                    && params.len() == others.len()
                    && params
                        .iter()
                        .zip(&**others)
                        .all(|(one, two)| self.is_same(one, two))
            }
            _ => one == two,
        }
    }

    /// Whether a parameter does not occur in a type, which must not contain itself.
    fn is_free_of(&mut self, number: u32, within: &Type) -> bool {
        if !self.step() {
            return true;
        }
        match within {
            Type::Param(other) if *other == number => false,
            Type::Param(other) => match self.find(*other).cloned() {
                None => true,
                Some(known) => self.is_free_of(number, &known),
            },
            _ => within
                .params()
                .into_iter()
                .all(|param| self.is_free_of(number, param)),
        }
    }

    /// Whether a type that is assignable to another is equal to it, or more general.
    fn is_as_general(&mut self, one: &Type, two: &Type) -> bool {
        if !self.step() || one.is_dyn() || matches!(one, Type::Param(_)) {
            return true;
        }
        if two.is_dyn() || matches!(two, Type::Param(_)) {
            return false;
        }
        match (one, two) {
            (Type::Of(_), Type::Of(_)) => true,
            (Type::List(one), Type::List(two)) => self.is_as_general(one, two),
            (Type::Map(key, value), Type::Map(other_key, other_value)) => {
                self.is_as_general(key, other_key) && self.is_as_general(value, other_value)
            }
            (Type::Opaque(name, params), Type::Opaque(other_name, others)) => {
                name == other_name
                    && params.len() == others.len()
                    && params
                        .iter()
                        .zip(&**others)
                        .all(|(one, two)| self.is_as_general(one, two))
            }
            _ => one == two,
        }
    }

    /// The more general of two types of which one is assignable to the other.
    pub fn most_general(&mut self, one: Type, two: Type) -> Type {
        match self.is_as_general(&one, &two) {
            true => one,
            false => two,
        }
    }

    /// A type with its bound parameters replaced; the others become `dyn`, if that is wanted.
    pub fn resolve(&mut self, of: &Type, unknown_is_dyn: bool) -> Type {
        if !self.step() {
            return Type::Dyn;
        }
        match of {
            Type::Param(number) => match self.find(*number).cloned() {
                Some(known) => self.resolve(&known, unknown_is_dyn),
                None if unknown_is_dyn => Type::Dyn,
                None => of.clone(),
            },
            Type::Of(Some(inner)) => Type::of(self.resolve(inner, unknown_is_dyn)),
            Type::List(element) => Type::list(self.resolve(element, unknown_is_dyn)),
            Type::Map(key, value) => Type::map(
                self.resolve(key, unknown_is_dyn),
                self.resolve(value, unknown_is_dyn),
            ),
            Type::Opaque(name, params) => {
                let params = params
                    .iter()
                    .map(|param| self.resolve(param, unknown_is_dyn));
                Type::Opaque(Arc::clone(name), params.collect())
            }
            _ => of.clone(),
        }
    }
}

/// Whether `null` is assignable to a type. Numbers, texts, lists and maps are never null.
fn is_nullable(of: &Type) -> bool {
    matches!(
        of,
        Type::Null | Type::Opaque(..) | Type::Struct(_) | Type::Duration | Type::Timestamp
    )
}

/// A type of a declaration, with its parameters replaced: the first by `first`, and so on.
pub fn instantiated(of: &Type, first: u32) -> Type {
    match of {
        Type::Param(number) => Type::Param(first + number),
        Type::Of(Some(inner)) => Type::of(instantiated(inner, first)),
        Type::List(element) => Type::list(instantiated(element, first)),
        Type::Map(key, value) => Type::map(instantiated(key, first), instantiated(value, first)),
        Type::Opaque(name, params) => {
            let params = params.iter().map(|param| instantiated(param, first));
            Type::Opaque(Arc::clone(name), params.collect())
        }
        _ => of.clone(),
    }
}
