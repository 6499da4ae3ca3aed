//! What cel-go checks of literals once all types are known: that the elements of a list or map are of one
//! type, and that a format string fits what it is given.
//!
//! Its checks of literal durations, timestamps and regular expressions don't depend on types: the API server
//! makes them when the policy is written, and refuses it.

use super::{
    ast::{Expr, Literal, Node},
    checker::Checked,
    parser::Tree,
    types::Type,
};

/// The method whose arguments may be of several types.
const FORMAT: &str = "format";

/// Adds the errors of literals to those of the checker, where there are none.
pub fn check(tree: &Tree, checked: &mut Checked) {
    if !checked.report.is_empty() || checked.is_unsure {
        return;
    }
    let mut errors: Vec<(u32, String)> = Vec::new();
    let mut is_unsure = false;
    let literals = Literals {
        tree,
        types: &checked.types,
    };
    tree.root.walk(&mut |expr, within| match &expr.node {
        Node::List(elements) if !within.contains(&FORMAT) => {
            is_unsure |= literals.list(elements, &mut errors).is_none();
        }
        Node::Map(_) if !within.contains(&FORMAT) => {
            is_unsure |= literals.map(expr, &mut errors).is_none();
        }
        Node::Call {
            function,
            target: Some(target),
            args,
        } if function == FORMAT => {
            if let (Node::Literal(Literal::String(text)), [arg]) = (&target.node, &args[..])
                && let Node::List(elements) = &arg.node
            {
                literals.format(expr, text, elements, &mut errors);
            }
        }
        _ => {}
    });
    checked.is_unsure |= is_unsure;
    for (at, message) in errors {
        checked.report.add(at, message);
    }
}

struct Literals<'a> {
    tree: &'a Tree,
    types: &'a [Option<Type>],
}

type Errors = Vec<(u32, String)>;

impl Literals<'_> {
    fn place(&self, expr: &Expr) -> u32 {
        let place = self.tree.positions.get(expr.id as usize);
        place.copied().unwrap_or(0)
    }

    fn of(&self, expr: &Expr) -> Type {
        let found = self.types.get(expr.id as usize);
        found.cloned().flatten().unwrap_or(Type::Dyn)
    }

    /// The type of an element; `None` where an optional one's is unknown.
    fn element(&self, expr: &Expr, optional: bool) -> Option<Type> {
        let of = self.of(expr);
        match optional {
            true => of.params().first().map(|inner| (*inner).clone()),
            false => Some(of),
        }
    }

    fn mismatch(&self, at: &Expr, expected: &Type, found: &Type) -> (u32, String) {
        let message = format!("expected type '{expected}' but found '{found}'");
        (self.place(at), message)
    }

    fn list(&self, elements: &[(Expr, bool)], errors: &mut Errors) -> Option<()> {
        let mut first = None;
        for (element, optional) in elements {
            let of = self.element(element, *optional)?;
            match &first {
                None => first = Some(of),
                Some(first) if *first != of => {
                    errors.push(self.mismatch(element, first, &of));
                    break;
                }
                Some(_) => {}
            }
        }
        Some(())
    }

    fn map(&self, expr: &Expr, errors: &mut Errors) -> Option<()> {
        let Node::Map(entries) = &expr.node else {
            return Some(());
        };
        let mut first: Option<(Type, Type)> = None;
        for entry in entries {
            let key = self.of(&entry.key);
            let value = self.element(&entry.value, entry.optional)?;
            match &first {
                None => first = Some((key, value)),
                Some((keys, values)) => {
                    if *keys != key {
                        errors.push(self.mismatch(&entry.key, keys, &key));
                    }
                    if *values != value {
                        errors.push(self.mismatch(&entry.value, values, &value));
                    }
                }
            }
        }
        Some(())
    }

    fn format(&self, call: &Expr, text: &str, args: &[(Expr, bool)], errors: &mut Errors) {
        match self.clauses(text.as_bytes(), args) {
            Ok(used) if args.len() > used => errors.push((
                self.place(call),
                format!(
                    "too many arguments supplied to string.format (expected {used}, got {})",
                    args.len()
                ),
            )),
            Ok(_) => {}
            Err((place, message)) => errors.push((place.unwrap_or(self.place(call)), message)),
        }
    }

    /// How many arguments a format string uses.
    fn clauses(&self, text: &[u8], args: &[(Expr, bool)]) -> Result<usize, (Option<u32>, String)> {
        let (mut at, mut used) = (0, 0);
        while at < text.len() {
            if text[at] != b'%' {
                at += 1;
                continue;
            }
            if text.get(at + 1) == Some(&b'%') {
                at += 2;
                continue;
            }
            at += 1;
            if at >= text.len() {
                return Err((None, "unexpected end of string".to_owned()));
            }
            let Some((arg, _)) = args.get(used) else {
                return Err((None, format!("index {used} out of range")));
            };
            used += 1;
            at = precision(text, at)?;
            let clause = text.get(at).copied().unwrap_or(0);
            at += 1;
            self.clause(clause, arg)?;
        }
        Ok(used)
    }

    fn clause(&self, clause: u8, arg: &Expr) -> Result<(), (Option<u32>, String)> {
        const NUMBERS: [Type; 2] = [Type::Int, Type::Uint];
        const FRACTIONS: [Type; 2] = [Type::Double, Type::String];
        const BINARIES: [Type; 3] = [Type::Int, Type::Uint, Type::Bool];
        const HEXES: [Type; 4] = [Type::Int, Type::Uint, Type::String, Type::Bytes];
        let (wanted, what): (&[Type], &str) = match clause {
            b's' => {
                return match self.as_text(arg) {
                    Ok(()) => Ok(()),
                    Err(bad) => Err(self.unfit(
                        bad,
                        "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps",
                    )),
                };
            }
            b'd' => (&NUMBERS, "decimal clause can only be used on integers"),
            b'f' => (&FRACTIONS, "fixed-point clause can only be used on doubles"),
            b'e' => (&FRACTIONS, "scientific clause can only be used on doubles"),
            b'b' => (
                &BINARIES,
                "only integers and bools can be formatted as binary",
            ),
            b'x' | b'X' => (
                &HEXES,
                "only integers, byte buffers, and strings can be formatted as hex",
            ),
            b'o' => (&NUMBERS, "octal clause can only be used on integers"),
            other => {
                let message = format!(
                    "could not parse formatting clause: unrecognized formatting clause \"{}\"",
                    char::from(other)
                );
                return Err((None, message));
            }
        };
        let found = self.of(arg);
        match found == Type::Dyn || wanted.contains(&found) {
            true => Ok(()),
            false => Err(self.unfit(arg, what)),
        }
    }

    fn unfit(&self, arg: &Expr, what: &str) -> (Option<u32>, String) {
        let name = self.of(arg).runtime_name();
        let message = format!("error during formatting: {what}, was given {name}");
        (Some(self.place(arg)), message)
    }

    /// Whether a value has a text; the part of a literal list or map that has none.
    fn as_text<'e>(&self, expr: &'e Expr) -> Result<(), &'e Expr> {
        if matches!(
            self.of(expr),
            Type::Error | Type::Opaque(..) | Type::Struct(_) | Type::Param(_)
        ) {
            return Err(expr);
        }
        match &expr.node {
            Node::List(elements) => elements.iter().try_for_each(|(e, _)| self.as_text(e)),
            Node::Map(entries) => entries.iter().try_for_each(|entry| {
                self.as_text(&entry.key)?;
                self.as_text(&entry.value)
            }),
            _ => Ok(()),
        }
    }
}

/// The place behind a precision such as `.3`.
fn precision(text: &[u8], at: usize) -> Result<usize, (Option<u32>, String)> {
    if text[at] != b'.' {
        return Ok(at);
    }
    let fail = |why: &str| {
        let message =
            format!("could not parse formatting clause: error while parsing precision: {why}");
        Err((None, message))
    };
    let digits = text[at + 1..]
        .iter()
        .take_while(|sign| sign.is_ascii_digit())
        .count();
    let end = at + 1 + digits;
    if end >= text.len() {
        return fail("could not find end of precision specifier");
    }
    let number = String::from_utf8_lossy(&text[at + 1..end]);
    match number.parse::<i64>() {
        Ok(_) => Ok(end),
        Err(_) => {
            let kind = match digits {
                0 => "invalid syntax",
                _ => "value out of range",
            };
            fail(&format!(
                "error while converting precision to integer: strconv.Atoi: parsing \"{number}\": {kind}"
            ))
        }
    }
}
