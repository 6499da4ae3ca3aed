//! Expressions parsed as cel-go's grammar has them, with its positions.
//!
//! The position of a node is what an error about it points at: the operator, the dot of a selection, the
//! opening bracket of a call, an index or a list. What a macro expands to has the position of the macro's
//! bracket. An expression that does not parse is refused by the API server when its policy is written, so no
//! syntax error is worded here.

use super::{
    ast::{DEPTH_MAX, Entry, Expr, Field, Fold, Id, Literal, Node},
    lexer::{Kind, Token, tokens},
};

/// Code points of an expression, as cel-go bounds them.
const SIZE_MAX: usize = 100_000;
/// The most nodes of one tree: `optMap` copies its receiver, so a chain of it doubles with each link.
const NODES_MAX: usize = 50_000;
/// The deepest nesting of brackets: cel-go's bound on recursion of a grammar rule.
const NESTED_MAX: usize = 150;

/// The accumulator of a macro; users can't write the name.
const ACCUMULATOR: &str = "@result";
/// Names that users may not give to an accumulator.
const OLD_ACCUMULATOR: &str = "__result__";

/// Words that are no variables.
const RESERVED: [&str; 17] = [
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

/// Why there is no tree: the expression is malformed, or too large to be checked here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unparsed;

/// A tree and where its nodes stand.
#[derive(Debug)]
pub struct Tree {
    /// The whole.
    pub root: Expr,
    /// The code point of each node, by its id.
    pub positions: Vec<u32>,
}

type Parsed<T = Expr> = Result<T, Unparsed>;

/// Parses an expression.
///
/// # Errors
/// Where it is malformed, or too large.
pub fn parse(chars: &[char]) -> Parsed<Tree> {
    if chars.len() > SIZE_MAX {
        return Err(Unparsed);
    }
    let tokens = tokens(chars).ok_or(Unparsed)?;
    let mut parser = Parser {
        tokens,
        next: 0,
        nested: 0,
        positions: Vec::new(),
    };
    let root = parser.expr()?;
    match parser.kind() {
        Kind::End => Ok(Tree {
            root,
            positions: parser.positions,
        }),
        _ => Err(Unparsed),
    }
}

struct Parser {
    tokens: Vec<Token>,
    next: usize,
    nested: usize,
    positions: Vec<u32>,
}

impl Parser {
    fn ahead(&self, count: usize) -> &Token {
        let last = self.tokens.len() - 1;
        &self.tokens[(self.next + count).min(last)]
    }

    fn kind(&self) -> &Kind {
        &self.ahead(0).kind
    }

    fn is(&self, sign: &str) -> bool {
        matches!(self.kind(), Kind::Sign(next) if *next == sign)
    }

    /// Moves behind a sign, if it is the next token; its position.
    fn eat(&mut self, sign: &str) -> Option<u32> {
        let at = self.ahead(0).at;
        self.is(sign).then(|| {
            self.next += 1;
            at
        })
    }

    fn expect(&mut self, sign: &str) -> Parsed<u32> {
        self.eat(sign).ok_or(Unparsed)
    }

    fn name(&mut self) -> Parsed<(String, u32)> {
        let token = self.ahead(0).clone();
        match token.kind {
            Kind::Name(name) => {
                self.next += 1;
                Ok((name, token.at))
            }
            _ => Err(Unparsed),
        }
    }

    fn id(&mut self, at: u32) -> Parsed<Id> {
        if self.positions.len() >= NODES_MAX {
            return Err(Unparsed);
        }
        self.positions.push(at);
        Id::try_from(self.positions.len() - 1).map_err(|_| Unparsed)
    }

    fn node(&mut self, at: u32, node: Node) -> Parsed {
        let depth = node.depth();
        match depth > DEPTH_MAX {
            true => Err(Unparsed),
            false => Ok(Expr {
                id: self.id(at)?,
                depth,
                node,
            }),
        }
    }

    fn operation(&mut self, at: u32, function: &str, args: Vec<Expr>) -> Parsed {
        let node = Node::Call {
            function: function.to_owned(),
            target: None,
            args,
        };
        self.node(at, node)
    }

    fn expr(&mut self) -> Parsed {
        if self.nested >= NESTED_MAX {
            return Err(Unparsed);
        }
        self.nested += 1;
        let mut condition = self.logical("||", "_||_")?;
        if let Some(at) = self.eat("?") {
            let positive = self.logical("||", "_||_")?;
            self.expect(":")?;
            let negative = self.expr()?;
            condition = self.operation(at, "_?_:_", vec![condition, positive, negative])?;
        }
        self.nested -= 1;
        Ok(condition)
    }

    /// A chain of `||`, or of `&&` within it, as a balanced tree.
    fn logical(&mut self, sign: &'static str, function: &'static str) -> Parsed {
        let mut terms = Vec::new();
        let mut places = Vec::new();
        loop {
            terms.push(Some(match sign {
                "||" => self.logical("&&", "_&&_")?,
                _ => self.binary(&RELATIONS)?,
            }));
            match self.eat(sign) {
                Some(at) => places.push(at),
                None => break,
            }
        }
        self.balanced(function, &mut terms, &places)
    }

    fn balanced(
        &mut self,
        function: &'static str,
        terms: &mut [Option<Expr>],
        places: &[u32],
    ) -> Parsed {
        if places.is_empty() {
            return terms[0].take().ok_or(Unparsed);
        }
        let middle = places.len() / 2;
        let (left, right) = terms.split_at_mut(middle + 1);
        let left = self.balanced(function, left, &places[..middle])?;
        let right = self.balanced(function, right, &places[middle + 1..])?;
        self.operation(places[middle], function, vec![left, right])
    }

    /// A chain of operators of one precedence, from the left.
    fn binary(&mut self, levels: &[&[(&'static str, &'static str)]]) -> Parsed {
        let Some((level, tighter)) = levels.split_first() else {
            return self.unary();
        };
        let mut left = self.binary(tighter)?;
        loop {
            let found = level.iter().find(|(sign, _)| self.is(sign));
            let Some((sign, function)) = found else {
                return Ok(left);
            };
            let at = self.expect(sign)?;
            let right = self.binary(tighter)?;
            left = self.operation(at, function, vec![left, right])?;
        }
    }

    fn unary(&mut self) -> Parsed {
        for (sign, function) in [("!", "!_"), ("-", "-_")] {
            let at = self.ahead(0).at;
            let mut count = 0;
            while matches!(&self.ahead(count).kind, Kind::Sign(next) if *next == sign) {
                count += 1;
            }
            let is_number = matches!(self.ahead(count).kind, Kind::Int(_) | Kind::Double);
            if count == 0 || (sign == "-" && count == 1 && is_number) {
                continue;
            }
            self.next += count;
            let operand = self.member()?;
            return match count % 2 {
                0 => Ok(operand),
                _ => self.operation(at, function, vec![operand]),
            };
        }
        self.member()
    }

    fn member(&mut self) -> Parsed {
        let mut operand = self.primary()?;
        loop {
            if let Some(dot) = self.eat(".") {
                let optional = self.eat("?").is_some();
                let (field, place) = self.name()?;
                if optional {
                    let field = self.node(place, Node::Literal(Literal::String(field)))?;
                    operand = self.operation(dot, "_?._", vec![operand, field])?;
                } else if let Some(at) = self.eat("(") {
                    let args = self.args()?;
                    operand = self.call(at, field, Some(operand), args)?;
                } else {
                    let node = Node::Select {
                        operand: Box::new(operand),
                        field,
                        test: false,
                    };
                    operand = self.node(dot, node)?;
                }
            } else if let Some(at) = self.eat("[") {
                let function = match self.eat("?") {
                    Some(_) => "_[?_]",
                    None => "_[_]",
                };
                let index = self.expr()?;
                self.expect("]")?;
                operand = self.operation(at, function, vec![operand, index])?;
            } else {
                return Ok(operand);
            }
        }
    }

    /// The arguments behind an opening bracket, and the closing one.
    fn args(&mut self) -> Parsed<Vec<Expr>> {
        let mut args = Vec::new();
        if self.eat(")").is_some() {
            return Ok(args);
        }
        loop {
            args.push(self.expr()?);
            if self.eat(",").is_none() {
                self.expect(")")?;
                return Ok(args);
            }
        }
    }

    fn primary(&mut self) -> Parsed {
        let Token { kind, at } = self.ahead(0).clone();
        match kind {
            Kind::Sign("(") => {
                self.next += 1;
                let inner = self.expr()?;
                self.expect(")")?;
                Ok(inner)
            }
            Kind::Sign("[") => {
                self.next += 1;
                self.list(at)
            }
            Kind::Sign("{") => {
                self.next += 1;
                self.map(at)
            }
            Kind::Sign(".") | Kind::Name(_) => self.named(),
            _ => self.literal(),
        }
    }

    fn literal(&mut self) -> Parsed {
        let at = self.ahead(0).at;
        let sign = match self.eat("-") {
            Some(_) => "-",
            None => "",
        };
        let kind = self.kind().clone();
        self.next += 1;
        let literal = match (kind, sign) {
            (Kind::Int(text), _) => {
                let value = match text.strip_prefix("0x") {
                    Some(digits) => i128::from_str_radix(digits, 16),
                    None => text.parse(),
                };
                let value = value.map_err(|_| Unparsed)?;
                let value = if sign.is_empty() { value } else { -value };
                i64::try_from(value).map_err(|_| Unparsed)?;
                Literal::Int
            }
            (Kind::Double, _) => Literal::Double,
            (Kind::Uint(text), "") => {
                let value = match text.strip_prefix("0x") {
                    Some(digits) => u64::from_str_radix(digits, 16),
                    None => text.parse(),
                };
                value.map_err(|_| Unparsed)?;
                Literal::Uint
            }
            (Kind::String(text), "") => Literal::String(text),
            (Kind::Bytes, "") => Literal::Bytes,
            (Kind::Sign("true" | "false"), "") => Literal::Bool,
            (Kind::Sign("null"), "") => Literal::Null,
            _ => return Err(Unparsed),
        };
        self.node(at, Node::Literal(literal))
    }

    fn list(&mut self, at: u32) -> Parsed {
        let mut elements = Vec::new();
        while self.eat("]").is_none() {
            let optional = self.eat("?").is_some();
            elements.push((self.expr()?, optional));
            if self.eat(",").is_none() {
                self.expect("]")?;
                break;
            }
        }
        self.node(at, Node::List(elements))
    }

    fn map(&mut self, at: u32) -> Parsed {
        let mut entries = Vec::new();
        while self.eat("}").is_none() {
            let optional = self.eat("?").is_some();
            let key = self.expr()?;
            self.expect(":")?;
            let value = self.expr()?;
            entries.push(Entry {
                key,
                value,
                optional,
            });
            if self.eat(",").is_none() {
                self.expect("}")?;
                break;
            }
        }
        self.node(at, Node::Map(entries))
    }

    /// A variable, a call, or a struct, whose name may have dots.
    fn named(&mut self) -> Parsed {
        let absolute = if self.eat(".").is_some() { "." } else { "" };
        if let Some(count) = self.struct_name() {
            let mut name = absolute.to_owned();
            for part in 0..count {
                if part > 0 {
                    self.expect(".")?;
                    name.push('.');
                }
                name.push_str(&self.name()?.0);
            }
            return self.make(name);
        }
        let (name, at) = self.name()?;
        if RESERVED.contains(&name.as_str()) {
            return Err(Unparsed);
        }
        let name = format!("{absolute}{name}");
        match self.eat("(") {
            Some(bracket) => {
                let args = self.args()?;
                self.call(bracket, name, None, args)
            }
            None => self.node(at, Node::Ident(name)),
        }
    }

    /// The number of identifiers in the name of the struct that is created here.
    fn struct_name(&self) -> Option<usize> {
        let mut count = 1;
        loop {
            let name = 2 * (count - 1);
            if !matches!(self.ahead(name).kind, Kind::Name(_)) {
                return None;
            }
            match self.ahead(name + 1).kind {
                Kind::Sign(".") => count += 1,
                Kind::Sign("{") => return Some(count),
                _ => return None,
            }
        }
    }

    fn make(&mut self, name: String) -> Parsed {
        let at = self.expect("{")?;
        let mut fields = Vec::new();
        while self.eat("}").is_none() {
            let optional = self.eat("?").is_some();
            let (name, _) = self.name()?;
            let colon = self.expect(":")?;
            fields.push(Field {
                id: self.id(colon)?,
                name,
                value: self.expr()?,
                optional,
            });
            if self.eat(",").is_none() {
                self.expect("}")?;
                break;
            }
        }
        self.node(at, Node::Struct { name, fields })
    }
}

/// Operators by precedence, the loosest first.
const RELATIONS: [&[(&str, &str)]; 3] = [
    &[
        ("<", "_<_"),
        ("<=", "_<=_"),
        (">=", "_>=_"),
        (">", "_>_"),
        ("==", "_==_"),
        ("!=", "_!=_"),
        ("in", "@in"),
    ],
    &[("+", "_+_"), ("-", "_-_")],
    &[("*", "_*_"), ("/", "_/_"), ("%", "_%_")],
];

/// Macros: calls that are rewritten before types are checked.
impl Parser {
    /// A call, or the expansion of the macro of its name. `at` is the call's opening bracket.
    fn call(&mut self, at: u32, function: String, target: Option<Expr>, args: Vec<Expr>) -> Parsed {
        let Some(target) = target else {
            if function == "has" && args.len() == 1 {
                return self.has(at, args);
            }
            return self.operation(at, &function, args);
        };
        match (function.as_str(), args.len()) {
            ("all" | "exists" | "exists_one", 2 | 3) | ("existsOne", 3) => {
                self.quantifier(at, &function, target, args)
            }
            ("map", 2 | 3) | ("filter", 2) => self.listed(at, &function, target, args),
            ("optMap" | "optFlatMap", 2) => self.opt_map(at, &function, target, args),
            ("transformList" | "transformMap" | "transformMapEntry", 3 | 4) => {
                self.transformed(at, &function, target, args)
            }
            ("sortBy", 2) => self.sorted(at, target, args),
            _ => {
                let node = Node::Call {
                    function,
                    target: Some(Box::new(target)),
                    args,
                };
                self.node(at, node)
            }
        }
    }

    fn has(&mut self, at: u32, mut args: Vec<Expr>) -> Parsed {
        match args.pop().map(|arg| arg.node) {
            // A test of a test is valid: cel-go accepts any selection.
            Some(Node::Select { operand, field, .. }) => {
                let node = Node::Select {
                    operand,
                    field,
                    test: true,
                };
                self.node(at, node)
            }
            _ => Err(Unparsed),
        }
    }

    fn accumulator(&mut self, at: u32) -> Parsed {
        self.node(at, Node::Ident(ACCUMULATOR.to_owned()))
    }

    fn constant(&mut self, at: u32, literal: Literal) -> Parsed {
        self.node(at, Node::Literal(literal))
    }

    fn list_of(&mut self, at: u32, elements: Vec<Expr>) -> Parsed {
        let elements = elements.into_iter().map(|element| (element, false));
        let node = Node::List(elements.collect());
        self.node(at, node)
    }

    /// `accumulator + [element]`, where a condition holds if there is one.
    fn appended(&mut self, at: u32, element: Expr, filter: Option<Expr>) -> Parsed {
        let list = self.list_of(at, vec![element])?;
        let accumulator = self.accumulator(at)?;
        let step = self.operation(at, "_+_", vec![accumulator, list])?;
        self.where_true(at, filter, step)
    }

    fn where_true(&mut self, at: u32, filter: Option<Expr>, step: Expr) -> Parsed {
        match filter {
            None => Ok(step),
            Some(filter) => {
                let accumulator = self.accumulator(at)?;
                self.operation(at, "_?_:_", vec![filter, step, accumulator])
            }
        }
    }

    fn fold(
        &mut self,
        at: u32,
        (range, variable, second): (Expr, String, Option<String>),
        [start, condition, step, result]: [Expr; 4],
    ) -> Parsed {
        let fold = Fold {
            range,
            variable,
            second,
            accumulator: ACCUMULATOR.to_owned(),
            start,
            condition,
            step,
            result,
        };
        self.node(at, Node::Fold(Box::new(fold)))
    }

    fn quantifier(&mut self, at: u32, kind: &str, target: Expr, mut args: Vec<Expr>) -> Parsed {
        let predicate = args.pop().ok_or(Unparsed)?;
        let variables = variables(&args)?;
        let accumulator = self.accumulator(at)?;
        let (start, condition, step, result) = match kind {
            "all" => (
                self.constant(at, Literal::Bool)?,
                self.operation(at, "@not_strictly_false", vec![accumulator])?,
                "_&&_",
                self.accumulator(at)?,
            ),
            "exists" => {
                let negated = self.operation(at, "!_", vec![accumulator])?;
                (
                    self.constant(at, Literal::Bool)?,
                    self.operation(at, "@not_strictly_false", vec![negated])?,
                    "_||_",
                    self.accumulator(at)?,
                )
            }
            _ => {
                let one = self.constant(at, Literal::Int)?;
                (
                    self.constant(at, Literal::Int)?,
                    self.constant(at, Literal::Bool)?,
                    "_?_:_",
                    self.operation(at, "_==_", vec![accumulator, one])?,
                )
            }
        };
        let accumulator = self.accumulator(at)?;
        let step = if step == "_?_:_" {
            let one = self.constant(at, Literal::Int)?;
            let more = self.operation(at, "_+_", vec![accumulator, one])?;
            let same = self.accumulator(at)?;
            self.operation(at, step, vec![predicate, more, same])?
        } else {
            self.operation(at, step, vec![accumulator, predicate])?
        };
        let (variable, second) = variables;
        self.fold(
            at,
            (target, variable, second),
            [start, condition, step, result],
        )
    }

    /// `map` and `filter`.
    fn listed(&mut self, at: u32, kind: &str, target: Expr, mut args: Vec<Expr>) -> Parsed {
        let last = args.pop().ok_or(Unparsed)?;
        let (element, filter) = match kind {
            "filter" => (args.pop().ok_or(Unparsed)?, Some(last)),
            _ if args.len() == 2 => (last, args.pop()),
            _ => (last, None),
        };
        let variable = match kind {
            "filter" => variable(&element)?,
            _ => variable(args.first().ok_or(Unparsed)?)?,
        };
        let start = self.list_of(at, Vec::new())?;
        let condition = self.constant(at, Literal::Bool)?;
        let step = self.appended(at, element, filter)?;
        let result = self.accumulator(at)?;
        self.fold(
            at,
            (target, variable, None),
            [start, condition, step, result],
        )
    }

    /// `transformList`, `transformMap` and `transformMapEntry`.
    fn transformed(&mut self, at: u32, kind: &str, target: Expr, mut args: Vec<Expr>) -> Parsed {
        let transform = args.pop().ok_or(Unparsed)?;
        let filter = if args.len() == 3 { args.pop() } else { None };
        let (variable, second) = variables(&args)?;
        let (start, step) = if kind == "transformList" {
            let start = self.list_of(at, Vec::new())?;
            (start, self.appended(at, transform, filter)?)
        } else {
            let start = self.node(at, Node::Map(Vec::new()))?;
            let mut inserted = vec![self.accumulator(at)?];
            if kind == "transformMap" {
                inserted.push(self.node(at, Node::Ident(variable.clone()))?);
            }
            inserted.push(transform);
            let step = self.operation(at, "cel.@mapInsert", inserted)?;
            (start, self.where_true(at, filter, step)?)
        };
        let condition = self.constant(at, Literal::Bool)?;
        let result = self.accumulator(at)?;
        self.fold(
            at,
            (target, variable, second),
            [start, condition, step, result],
        )
    }

    /// A fold without a loop: `result` with a value bound to a name.
    fn bound(&mut self, at: u32, name: &str, value: Expr, result: Expr) -> Parsed {
        let fold = Fold {
            range: self.list_of(at, Vec::new())?,
            variable: "#unused".to_owned(),
            second: None,
            accumulator: name.to_owned(),
            start: value,
            condition: self.constant(at, Literal::Bool)?,
            step: self.node(at, Node::Ident(name.to_owned()))?,
            result,
        };
        self.node(at, Node::Fold(Box::new(fold)))
    }

    fn opt_map(&mut self, at: u32, kind: &str, target: Expr, mut args: Vec<Expr>) -> Parsed {
        let mapped = args.pop().ok_or(Unparsed)?;
        let name = match args.pop().map(|arg| arg.node) {
            Some(Node::Ident(name)) => name,
            _ => return Err(Unparsed),
        };
        let copy = self.copy(at, &target)?;
        let value = self.method(at, "value", copy)?;
        let has_value = self.method(at, "hasValue", target)?;
        let bound = self.bound(at, &name, value, mapped)?;
        let positive = match kind {
            "optMap" => self.operation(at, "optional.of", vec![bound])?,
            _ => bound,
        };
        let none = self.operation(at, "optional.none", Vec::new())?;
        self.operation(at, "_?_:_", vec![has_value, positive, none])
    }

    fn method(&mut self, at: u32, function: &str, target: Expr) -> Parsed {
        let node = Node::Call {
            function: function.to_owned(),
            target: Some(Box::new(target)),
            args: Vec::new(),
        };
        self.node(at, node)
    }

    fn sorted(&mut self, at: u32, target: Expr, args: Vec<Expr>) -> Parsed {
        const INPUT: &str = "@__sortBy_input__";
        let sortable = matches!(
            target.node,
            Node::List(_)
                | Node::Select { .. }
                | Node::Ident(_)
                | Node::Fold(_)
                | Node::Call { .. }
        );
        if !sortable {
            return Err(Unparsed);
        }
        let input = self.node(at, Node::Ident(INPUT.to_owned()))?;
        let keys = self.listed(at, "map", input, args)?;
        let node = Node::Call {
            function: "@sortByAssociatedKeys".to_owned(),
            target: Some(Box::new(self.node(at, Node::Ident(INPUT.to_owned()))?)),
            args: vec![keys],
        };
        let result = self.node(at, node)?;
        self.bound(at, INPUT, target, result)
    }

    /// A copy of a tree with new identities, each node at its old position; entries at the macro's.
    fn copy(&mut self, at: u32, expr: &Expr) -> Parsed {
        let place = self.positions.get(expr.id as usize).copied().unwrap_or(at);
        let id = self.id(place)?;
        let node = match &expr.node {
            Node::Literal(_) | Node::Ident(_) => expr.node.clone(),
            Node::Select {
                operand,
                field,
                test,
            } => Node::Select {
                operand: Box::new(self.copy(at, operand)?),
                field: field.clone(),
                test: *test,
            },
            Node::Call {
                function,
                target,
                args,
            } => Node::Call {
                function: function.clone(),
                target: match target {
                    Some(target) => Some(Box::new(self.copy(at, target)?)),
                    None => None,
                },
                args: args
                    .iter()
                    .map(|arg| self.copy(at, arg))
                    .collect::<Parsed<_>>()?,
            },
            Node::List(elements) => Node::List(
                elements
                    .iter()
                    .map(|(element, optional)| Ok((self.copy(at, element)?, *optional)))
                    .collect::<Parsed<_>>()?,
            ),
            Node::Map(entries) => Node::Map(
                entries
                    .iter()
                    .map(|entry| {
                        Ok(Entry {
                            key: self.copy(at, &entry.key)?,
                            value: self.copy(at, &entry.value)?,
                            optional: entry.optional,
                        })
                    })
                    .collect::<Parsed<_>>()?,
            ),
            Node::Struct { name, fields } => Node::Struct {
                name: name.clone(),
                fields: fields
                    .iter()
                    .map(|field| {
                        Ok(Field {
                            id: self.id(at)?,
                            name: field.name.clone(),
                            value: self.copy(at, &field.value)?,
                            optional: field.optional,
                        })
                    })
                    .collect::<Parsed<_>>()?,
            },
            Node::Fold(fold) => Node::Fold(Box::new(Fold {
                range: self.copy(at, &fold.range)?,
                variable: fold.variable.clone(),
                second: fold.second.clone(),
                accumulator: fold.accumulator.clone(),
                start: self.copy(at, &fold.start)?,
                condition: self.copy(at, &fold.condition)?,
                step: self.copy(at, &fold.step)?,
                result: self.copy(at, &fold.result)?,
            })),
        };
        Ok(Expr {
            id,
            depth: expr.depth,
            node,
        })
    }
}

/// The variable that an argument of a macro names.
fn variable(arg: &Expr) -> Parsed<String> {
    match &arg.node {
        Node::Ident(name) if name != ACCUMULATOR && name != OLD_ACCUMULATOR => Ok(name.clone()),
        _ => Err(Unparsed),
    }
}

/// The one or two variables of a macro.
fn variables(args: &[Expr]) -> Parsed<(String, Option<String>)> {
    match args {
        [one] => Ok((variable(one)?, None)),
        [one, two] => {
            let (one, two) = (variable(one)?, variable(two)?);
            match one == two {
                true => Err(Unparsed),
                false => Ok((one, Some(two))),
            }
        }
        _ => Err(Unparsed),
    }
}
