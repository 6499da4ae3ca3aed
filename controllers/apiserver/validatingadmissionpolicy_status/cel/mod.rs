//! A type checker of CEL expressions that finds what cel-go's finds and words it alike.
//!
//! An expression goes through lexer, parser with macros ([`parser`]), checker ([`checker`]) and the checks of
//! literals ([`literals`]). Each is bounded: size and depth of an expression, nodes after expansion of
//! macros, steps of unification, sizes of types. Where a bound is met, or something is used whose definition
//! is not known here (messages of `google.protobuf`), the verdict is [`Verdict::Unsure`]: no error is
//! reported that cel-go might not report.

mod ast;
mod checker;
mod functions;
mod lexer;
mod literals;
mod parser;
mod report;
mod types;

pub use checker::{Environment, Fields};
pub use types::Type;

/// What is said of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its types fit; the type of its value.
    Fits(Type),
    /// They don't: the errors, as cel-go shows them.
    Wrong(String),
    /// It does not parse, is too large, or uses something unknown here.
    Unsure,
}

/// Checks the types of an expression.
pub fn check(expression: &str, environment: &Environment) -> Verdict {
    let source: Vec<char> = expression.chars().collect();
    let Ok(tree) = parser::parse(&source) else {
        return Verdict::Unsure;
    };
    let mut checked = checker::check(&tree, environment);
    literals::check(&tree, &mut checked);
    if checked.is_unsure {
        return Verdict::Unsure;
    }
    if !checked.report.is_empty() {
        return Verdict::Wrong(checked.report.show(&source));
    }
    let of = checked.types.get(tree.root.id as usize).cloned().flatten();
    of.map_or(Verdict::Unsure, Verdict::Fits)
}
