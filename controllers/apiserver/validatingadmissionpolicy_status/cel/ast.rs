//! The syntax tree of an expression, after expansion of its macros.

/// Identifies a node; the key of its type and of its position.
pub type Id = u32;

/// A node.
#[derive(Clone, Debug)]
pub struct Expr {
    /// Its identity within one tree.
    pub id: Id,
    /// Levels of nodes below and including this one; at most [`DEPTH_MAX`].
    pub depth: u16,
    /// What it is.
    pub node: Node,
}

/// The depth of a tree at most. It bounds the stack of every recursive walk.
pub const DEPTH_MAX: u16 = 400;

/// What a node is.
#[derive(Clone, Debug)]
pub enum Node {
    /// A constant.
    Literal(Literal),
    /// A name; one that begins with a dot is absolute.
    Ident(String),
    /// `operand.field`, or the test `has(operand.field)`.
    Select {
        /// Of what.
        operand: Box<Expr>,
        /// Which field.
        field: String,
        /// Whether its presence is what is asked.
        test: bool,
    },
    /// A call of a function, an operator or a method.
    Call {
        /// The function's name, as in `_+_` and `startsWith`.
        function: String,
        /// The receiver of a method.
        target: Option<Box<Expr>>,
        /// The arguments.
        args: Vec<Expr>,
    },
    /// `[a, ?b]`: each element, and whether it is optional.
    List(Vec<(Expr, bool)>),
    /// `{a: b}`.
    Map(Vec<Entry>),
    /// `Name{field: value}`.
    Struct {
        /// The type's name.
        name: String,
        /// The fields that are given.
        fields: Vec<Field>,
    },
    /// What macros such as `all` expand to.
    Fold(Box<Fold>),
}

/// A constant. Only texts are kept: format strings and optional fields are checked by their value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Literal {
    /// `true`
    Bool,
    /// `b'x'`
    Bytes,
    /// `1.0`
    Double,
    /// `1`
    Int,
    /// `null`
    Null,
    /// `'x'`
    String(String),
    /// `1u`
    Uint,
}

/// An entry of a map.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The key.
    pub key: Expr,
    /// The value.
    pub value: Expr,
    /// Whether the entry is left out where the value is an empty optional.
    pub optional: bool,
}

/// A field of a struct that is made.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its identity, for its position.
    pub id: Id,
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Expr,
    /// As [`Entry::optional`].
    pub optional: bool,
}

/// A loop over a list or map that accumulates a result.
#[derive(Clone, Debug)]
pub struct Fold {
    /// What is iterated over.
    pub range: Expr,
    /// The variable of each element, key or index.
    pub variable: String,
    /// The variable of each value, in the forms with two variables.
    pub second: Option<String>,
    /// The accumulator's name.
    pub accumulator: String,
    /// The accumulator's first value.
    pub start: Expr,
    /// Whether the loop continues.
    pub condition: Expr,
    /// The accumulator's next value.
    pub step: Expr,
    /// The value of the whole.
    pub result: Expr,
}

impl Node {
    /// Levels below and including this node.
    pub fn depth(&self) -> u16 {
        let below = match self {
            Self::Literal(_) | Self::Ident(_) => 0,
            Self::Select { operand, .. } => operand.depth,
            Self::Call { target, args, .. } => {
                let args = args.iter().map(|arg| arg.depth);
                args.chain(target.iter().map(|target| target.depth))
                    .max()
                    .unwrap_or(0)
            }
            Self::List(elements) => elements.iter().map(|(e, _)| e.depth).max().unwrap_or(0),
            Self::Map(entries) => {
                let depths = entries.iter().map(|e| e.key.depth.max(e.value.depth));
                depths.max().unwrap_or(0)
            }
            Self::Struct { fields, .. } => fields.iter().map(|f| f.value.depth).max().unwrap_or(0),
            Self::Fold(fold) => [
                &fold.range,
                &fold.start,
                &fold.condition,
                &fold.step,
                &fold.result,
            ]
            .map(|part| part.depth)
            .into_iter()
            .max()
            .unwrap_or(0),
        };
        below.saturating_add(1)
    }
}

impl Expr {
    /// Calls `visit` with this node and every node below it, and the function that each call is an argument
    /// or receiver of, outermost first.
    pub fn walk<'a>(&'a self, visit: &mut impl FnMut(&'a Self, &[&'a str])) {
        self.walk_within(&mut Vec::new(), visit);
    }

    fn walk_within<'a>(
        &'a self,
        within: &mut Vec<&'a str>,
        visit: &mut impl FnMut(&'a Self, &[&'a str]),
    ) {
        visit(self, within);
        match &self.node {
            Node::Literal(_) | Node::Ident(_) => {}
            Node::Select { operand, .. } => operand.walk_within(within, visit),
            Node::Call {
                function,
                target,
                args,
            } => {
                within.push(function);
                for part in target.iter().map(|target| &**target).chain(args) {
                    part.walk_within(within, visit);
                }
                within.pop();
            }
            Node::List(elements) => {
                for (element, _) in elements {
                    element.walk_within(within, visit);
                }
            }
            Node::Map(entries) => {
                for entry in entries {
                    entry.key.walk_within(within, visit);
                    entry.value.walk_within(within, visit);
                }
            }
            Node::Struct { fields, .. } => {
                for field in fields {
                    field.value.walk_within(within, visit);
                }
            }
            Node::Fold(fold) => {
                for part in [
                    &fold.range,
                    &fold.start,
                    &fold.condition,
                    &fold.step,
                    &fold.result,
                ] {
                    part.walk_within(within, visit);
                }
            }
        }
    }

    /// The qualified name that a chain of selections may be, as in `sets.contains`.
    pub fn qualified_name(&self) -> Option<String> {
        match &self.node {
            Node::Ident(name) => Some(name.clone()),
            Node::Select {
                operand,
                field,
                test: false,
            } => {
                let mut name = operand.qualified_name()?;
                name.push('.');
                name.push_str(field);
                Some(name)
            }
            _ => None,
        }
    }
}
