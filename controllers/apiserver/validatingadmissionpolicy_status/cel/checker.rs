//! The types of an expression's nodes, found as cel-go finds them, with its errors.

use std::collections::HashMap;

use super::{
    ast::{Expr, Field, Fold, Id, Literal, Node},
    functions::{Overload, overloads},
    parser::Tree,
    report::Report,
    types::{Bindings, Type, instantiated},
};

/// What an expression may refer to.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Variables by name.
    pub variables: HashMap<String, Type>,
    /// The fields of object types, by the types' names.
    pub structs: HashMap<String, Fields>,
}

/// The fields of an object type.
pub type Fields = HashMap<String, Type>;

/// Reserved words that may be field names: in a schema their names are escaped.
const RESERVED_FIELDS: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];
/// Types without fields that are known by name.
const SCALARS: [&str; 9] = [
    "bool",
    "bytes",
    "double",
    "duration",
    "int",
    "null_type",
    "string",
    "timestamp",
    "uint",
];
/// The package of types whose definitions are unknown here.
const UNKNOWN_PACKAGE: &str = "google";
/// The most nodes of a type. No real expression comes near; beyond it there is no verdict.
const TYPE_SIZE_MAX: usize = 1000;

/// What checking has found.
pub struct Checked {
    /// The errors.
    pub report: Report,
    /// The type of each node, by its id.
    pub types: Vec<Option<Type>>,
    /// Whether the expression uses something unknown here: other findings are void then.
    pub is_unsure: bool,
}

/// Finds the types of a tree.
pub fn check(tree: &Tree, environment: &Environment) -> Checked {
    let mut checker = Checker {
        environment,
        positions: &tree.positions,
        types: vec![None; tree.positions.len()],
        scopes: Vec::new(),
        bindings: Bindings::default(),
        report: Report::default(),
        is_unsure: false,
    };
    checker.check(&tree.root);
    let mut types = std::mem::take(&mut checker.types);
    for slot in types.iter_mut().flatten() {
        *slot = checker.bindings.resolve(slot, true);
    }
    Checked {
        is_unsure: checker.is_unsure || checker.bindings.is_exhausted(),
        report: checker.report,
        types,
    }
}

struct Checker<'a> {
    environment: &'a Environment,
    positions: &'a [u32],
    types: Vec<Option<Type>>,
    /// Variables of macros, the innermost last.
    scopes: Vec<(String, Type)>,
    bindings: Bindings,
    report: Report,
    is_unsure: bool,
}

impl Checker<'_> {
    fn error(&mut self, at: Id, message: String) {
        let place = self.positions.get(at as usize).copied().unwrap_or(0);
        self.report.add(place, message);
    }

    fn of(&self, expr: &Expr) -> Type {
        let found = self.types.get(expr.id as usize);
        found.cloned().flatten().unwrap_or(Type::Error)
    }

    fn set(&mut self, expr: &Expr, to: Type) {
        let mut size = 0;
        if !is_small(&to, &mut size) {
            self.is_unsure = true;
        }
        match &mut self.types[expr.id as usize] {
            // cel-go has an error for this that shows its own tree.
            Some(old) if *old != to => self.is_unsure = true,
            slot => *slot = Some(to),
        }
    }

    fn mismatch(&mut self, at: &Expr, expected: &Type, found: &Type) {
        let message = format!("expected type '{expected}' but found '{found}'");
        self.error(at.id, message);
    }

    fn undeclared(&mut self, at: &Expr, name: &str) {
        let message = format!("undeclared reference to '{name}' (in container '')");
        self.error(at.id, message);
    }

    fn check(&mut self, expr: &Expr) {
        if self.is_unsure || !self.bindings.step() {
            self.is_unsure = true;
            return;
        }
        match &expr.node {
            Node::Literal(literal) => {
                let of = match literal {
                    Literal::Bool => Type::Bool,
                    Literal::Bytes => Type::Bytes,
                    Literal::Double => Type::Double,
                    Literal::Int => Type::Int,
                    Literal::Null => Type::Null,
                    Literal::String(_) => Type::String,
                    Literal::Uint => Type::Uint,
                };
                self.set(expr, of);
            }
            Node::Ident(name) => match self.variable(name) {
                Some(of) => self.set(expr, of),
                None => {
                    self.set(expr, Type::Error);
                    self.undeclared(expr, name);
                }
            },
            Node::Select {
                operand,
                field,
                test,
            } => self.select(expr, operand, field, *test),
            Node::Call {
                function,
                target,
                args,
            } => self.call(expr, function, target.as_deref(), args),
            Node::List(elements) => self.list(expr, elements),
            Node::Map(_) => self.map(expr),
            Node::Struct { name, fields } => self.make(expr, name, fields),
            Node::Fold(fold) => self.fold(expr, fold),
        }
    }

    /// The type of a variable, or of a named type.
    fn variable(&mut self, name: &str) -> Option<Type> {
        let name = name.strip_prefix('.').unwrap_or(name);
        let local = self.scopes.iter().rev().find(|(known, _)| known == name);
        if let Some((_, of)) = local {
            return Some(of.clone());
        }
        if let Some(of) = self.environment.variables.get(name) {
            return Some(of.clone());
        }
        // Of the messages, these two are types of the language too.
        match name {
            "google.protobuf.Duration" => return Some(Type::of(Type::Duration)),
            "google.protobuf.Timestamp" => return Some(Type::of(Type::Timestamp)),
            _ => {}
        }
        if name.split('.').next() == Some(UNKNOWN_PACKAGE) {
            self.is_unsure = true;
            return Some(Type::Dyn);
        }
        Some(match name {
            "bool" => Type::of(Type::Bool),
            "bytes" => Type::of(Type::Bytes),
            "double" => Type::of(Type::Double),
            "duration" => Type::of(Type::Duration),
            "int" => Type::of(Type::Int),
            "list" => Type::of(Type::list(Type::Param(0))),
            "map" => Type::of(Type::map(Type::Param(0), Type::Param(1))),
            "null_type" => Type::of(Type::Null),
            "string" => Type::of(Type::String),
            "timestamp" => Type::of(Type::Timestamp),
            "type" => Type::of(Type::Of(None)),
            "uint" => Type::of(Type::Uint),
            "net.IP" | "net.CIDR" | "optional_type" => {
                Type::of(Type::Opaque(name.into(), [].into()))
            }
            _ if self.environment.structs.contains_key(name) => Type::of(Type::object(name)),
            _ => return None,
        })
    }

    fn select(&mut self, expr: &Expr, operand: &Expr, field: &str, test: bool) {
        if let Some(of) = expr.qualified_name().and_then(|name| self.variable(&name)) {
            self.set(expr, of);
            return;
        }
        let found = self.field(expr, operand, field, false);
        let of = if test { Type::Bool } else { found };
        let of = self.bindings.resolve(&of, false);
        self.set(expr, of);
    }

    fn optional_select(&mut self, expr: &Expr, operand: &Expr, field: &Expr) {
        let Node::Literal(Literal::String(name)) = &field.node else {
            self.is_unsure = true;
            return;
        };
        let found = self.field(expr, operand, name, true);
        let of = self.bindings.resolve(&found, false);
        self.set(expr, of);
    }

    /// The type of a field of what an operand is.
    fn field(&mut self, expr: &Expr, operand: &Expr, field: &str, optional: bool) -> Type {
        self.check(operand);
        let operand = self.of(operand);
        let operand = self.bindings.resolve(&operand, false);
        let value = operand.optional_value();
        let is_optional = optional || value.is_some();
        let found = match value.unwrap_or(&operand) {
            Type::Map(_, value) => (**value).clone(),
            Type::Struct(name) => self.declared(expr.id, name, field).unwrap_or(Type::Error),
            unknown @ Type::Param(_) => {
                self.bindings.assign(&Type::Dyn, unknown);
                Type::Dyn
            }
            other => {
                if !other.is_dyn_or_error() {
                    let message = format!("type '{other}' does not support field selection");
                    self.error(expr.id, message);
                }
                Type::Dyn
            }
        };
        match is_optional {
            true => Type::optional(found),
            false => found,
        }
    }

    /// A field of an object type.
    fn declared(&mut self, at: Id, object: &str, field: &str) -> Option<Type> {
        let Some(fields) = self.environment.structs.get(object) else {
            let message = match SCALARS.contains(&object) {
                true => format!("undefined field '{field}'"),
                false => format!("unexpected failed resolution of '{object}'"),
            };
            self.error(at, message);
            return None;
        };
        let escaped = || match RESERVED_FIELDS.contains(&field) {
            true => fields.get(&format!("__{field}__")),
            false => None,
        };
        match fields.get(field).or_else(escaped) {
            Some(of) => Some(of.clone()),
            None => {
                self.error(at, format!("undefined field '{field}'"));
                None
            }
        }
    }

    fn call(&mut self, expr: &Expr, function: &str, target: Option<&Expr>, args: &[Expr]) {
        if let ("_?._", None, [operand, field]) = (function, target, args) {
            self.optional_select(expr, operand, field);
            return;
        }
        for arg in args {
            self.check(arg);
        }
        let plain = function.strip_prefix('.').unwrap_or(function);
        let Some(target) = target else {
            match overloads(plain) {
                Some(all) => self.resolve(expr, plain, all, None, args),
                None => {
                    self.undeclared(expr, function);
                    self.set(expr, Type::Error);
                }
            }
            return;
        };
        if let Some(prefix) = target.qualified_name() {
            let name = format!("{}.{function}", prefix.strip_prefix('.').unwrap_or(&prefix));
            if let Some(all) = overloads(&name) {
                self.resolve(expr, &name, all, None, args);
                return;
            }
        }
        self.check(target);
        match overloads(function) {
            Some(all) => self.resolve(expr, function, all, Some(target), args),
            None => {
                self.set(expr, Type::Error);
                self.undeclared(expr, function);
            }
        }
    }

    /// Finds the signatures that match a call, and with them the type of its result.
    fn resolve(
        &mut self,
        expr: &Expr,
        name: &str,
        all: &[Overload],
        target: Option<&Expr>,
        args: &[Expr],
    ) {
        if matches!(name, "_&&_" | "_||_") {
            let mut result = Type::Bool;
            for arg in args {
                let found = self.of(arg);
                if !self.bindings.assign(&found, &Type::Bool) {
                    self.mismatch(arg, &Type::Bool, &found);
                    result = Type::Error;
                }
            }
            self.set(expr, result);
            return;
        }
        let mut found: Vec<Type> = target.iter().map(|target| self.of(target)).collect();
        found.extend(args.iter().map(|arg| self.of(arg)));
        let mut result: Option<Type> = None;
        for overload in all {
            if overload.is_method != target.is_some() {
                continue;
            }
            let first = (0..overload.params)
                .map(|_| self.bindings.fresh())
                .min()
                .unwrap_or(0);
            let wanted: Vec<Type> = overload
                .args
                .iter()
                .map(|arg| instantiated(arg, first))
                .collect();
            if !self.bindings.assign_all(&found, &wanted) {
                continue;
            }
            let of = self
                .bindings
                .resolve(&instantiated(&overload.result, first), false);
            result = Some(match result {
                None => of,
                Some(known) if known.is_dyn() || known == of => known,
                Some(_) => Type::Dyn,
            });
        }
        match result {
            Some(result) => self.set(expr, result),
            None => {
                let shown: Vec<String> = found
                    .iter()
                    .map(|arg| self.bindings.resolve(arg, true).to_string())
                    .collect();
                let signature = match (target, shown.split_first()) {
                    (Some(_), Some((target, args))) => format!("{target}.({})", args.join(", ")),
                    _ => format!("({})", shown.join(", ")),
                };
                let message =
                    format!("found no matching overload for '{name}' applied to '{signature}'");
                self.error(expr.id, message);
                self.set(expr, Type::Error);
            }
        }
    }

    /// The value type of an optional element, entry or field.
    fn unwrapped(&mut self, at: &Expr, of: Type) -> Type {
        match of.optional_value() {
            Some(value) => value.clone(),
            None => {
                if !of.is_dyn() {
                    self.mismatch(at, &Type::optional(of.clone()), &of);
                }
                of
            }
        }
    }

    /// The common type of elements.
    fn joined(&mut self, previous: Option<Type>, current: Type) -> Type {
        match previous {
            None => current,
            Some(previous) if self.bindings.assign(&previous, &current) => {
                self.bindings.most_general(previous, current)
            }
            Some(_) => Type::Dyn,
        }
    }

    fn list(&mut self, expr: &Expr, elements: &[(Expr, bool)]) {
        let mut all = None;
        for (element, optional) in elements {
            self.check(element);
            let mut of = self.of(element);
            if *optional {
                of = self.unwrapped(element, of);
            }
            all = Some(self.joined(all, of));
        }
        let element = all.unwrap_or_else(|| Type::Param(self.bindings.fresh()));
        self.set(expr, Type::list(element));
    }

    fn map(&mut self, expr: &Expr) {
        let Node::Map(entries) = &expr.node else {
            return;
        };
        let (mut keys, mut values) = (None, None);
        for entry in entries {
            self.check(&entry.key);
            let key = self.of(&entry.key);
            keys = Some(self.joined(keys, key));
            self.check(&entry.value);
            let mut value = self.of(&entry.value);
            if entry.optional {
                value = self.unwrapped(&entry.value, value);
            }
            values = Some(self.joined(values, value));
        }
        let of = match (keys, values) {
            (Some(key), Some(value)) => Type::map(key, value),
            _ => {
                let key = Type::Param(self.bindings.fresh());
                Type::map(key, Type::Param(self.bindings.fresh()))
            }
        };
        self.set(expr, of);
    }

    fn make(&mut self, expr: &Expr, name: &str, fields: &[Field]) {
        let plain = name.strip_prefix('.').unwrap_or(name);
        let result = match self.variable(name) {
            None => {
                self.undeclared(expr, name);
                self.set(expr, Type::Error);
                return;
            }
            Some(Type::Error) => Type::Error,
            Some(Type::Of(Some(inner))) => match &*inner {
                made @ Type::Struct(_) => made.clone(),
                // Types with a message of their own are created by its name.
                Type::Timestamp
                | Type::Duration
                | Type::Dyn
                | Type::Null
                | Type::List(_)
                | Type::Map(..) => {
                    self.is_unsure = true;
                    return;
                }
                other => {
                    let message = format!("'{}' is not a message type", other.runtime_name());
                    self.error(expr.id, message);
                    Type::Error
                }
            },
            Some(other) => {
                let message = format!("'{}' is not a type", other.runtime_name());
                self.error(expr.id, message);
                Type::Error
            }
        };
        let object = match &result {
            Type::Struct(name) => name.to_string(),
            _ => plain.to_owned(),
        };
        self.set(expr, result);
        for field in fields {
            self.check(&field.value);
            let wanted = self
                .declared(field.id, &object, &field.name)
                .unwrap_or(Type::Error);
            let mut found = self.of(&field.value);
            if field.optional {
                found = self.unwrapped(&field.value, found);
            }
            if !self.bindings.assign(&wanted, &found) {
                let name = &field.name;
                let message = format!(
                    "expected type of field '{name}' is '{wanted}' but provided type is '{found}'"
                );
                self.error(field.id, message);
            }
        }
    }

    fn assert(&mut self, expr: &Expr, wanted: &Type) {
        let found = self.of(expr);
        if !self.bindings.assign(wanted, &found) {
            self.mismatch(expr, wanted, &found);
        }
    }

    fn fold(&mut self, expr: &Expr, fold: &Fold) {
        self.check(&fold.range);
        self.check(&fold.start);
        let range = self.of(&fold.range);
        let range = self.bindings.resolve(&range, false);
        let start = self.of(&fold.start);
        let outer = self.scopes.len();
        self.scopes.push((fold.accumulator.clone(), start.clone()));
        let has_second = fold.second.is_some();
        let (first, second) = match &range {
            Type::List(element) if has_second => (Type::Int, (**element).clone()),
            Type::List(element) => ((**element).clone(), Type::Dyn),
            Type::Map(key, value) => ((**key).clone(), (**value).clone()),
            Type::Dyn | Type::Error | Type::Param(_) => {
                self.bindings.assign(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.error(fold.range.id, message);
                (Type::Error, Type::Error)
            }
        };
        let inner = self.scopes.len();
        self.scopes.push((fold.variable.clone(), first));
        if let Some(name) = &fold.second {
            self.scopes.push((name.clone(), second));
        }
        self.check(&fold.condition);
        self.assert(&fold.condition, &Type::Bool);
        self.check(&fold.step);
        self.assert(&fold.step, &start);
        self.scopes.truncate(inner);
        self.check(&fold.result);
        self.scopes.truncate(outer);
        let result = self.of(&fold.result);
        let result = self.bindings.resolve(&result, false);
        self.set(expr, result);
    }
}

/// Whether a type has no more nodes than [`TYPE_SIZE_MAX`].
fn is_small(of: &Type, size: &mut usize) -> bool {
    *size += 1;
    *size <= TYPE_SIZE_MAX && of.params().into_iter().all(|param| is_small(param, size))
}
