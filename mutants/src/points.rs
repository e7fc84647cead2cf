//! Where one small mistake is possible in a file of Rust, and what the text would be with it: the operators. All of
//! them keep types as they are, as far as one can see without types; the compiler finds out what does not compile.
//!
//! Left alone are tests, constants, patterns, macros, formatting, and what only counts (`counters.count(..)`).

use std::ops::Range;

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Expr, ExprBinary, ExprMethodCall, Lit, Stmt};

/// Verbs that a chain is built of.
const VERBS: [&str; 7] = ["read", "write", "write_word", "cas", "faa", "fence", "fence_if_needed"];
/// Calls that only count, and functions: a mistake there is none of a protocol.
const COUNTERS: [&str; 1] = ["count"];
const COUNTING: [&str; 2] = ["bytes", "stats"];

/// A text that may be replaced.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// In bytes of the file.
    pub(crate) range: Range<usize>,
    pub(crate) line: usize,
    pub(crate) function: String,
    pub(crate) operator: String,
    /// The text that replaces it.
    pub(crate) mutated: String,
    /// True if both texts are statements; they are expressions otherwise.
    pub(crate) is_statement: bool,
}

/// Yields all points of a file, in the order of their text, outer ones first; none overlaps another without containing
/// it.
///
/// # Errors
/// If the file is not Rust.
pub(crate) fn points(text: &str) -> syn::Result<Vec<Point>> {
    let file = syn::parse_file(text)?;
    let mut finder = Finder { text, functions: Vec::new(), found: Vec::new() };
    finder.visit_file(&file);
    Ok(nested(finder.found))
}

/// Sorts points, and drops those that overlap one before them in part.
pub(crate) fn nested(mut found: Vec<Point>) -> Vec<Point> {
    found.sort_by_key(|point| (point.range.start, std::cmp::Reverse(point.range.end)));
    let mut open: Vec<usize> = Vec::new();
    found.retain(|point| {
        open.retain(|&end| end > point.range.start);
        let fits = open.last().is_none_or(|&end| point.range.end <= end);
        if fits {
            open.push(point.range.end);
        }
        fits
    });
    found
}

struct Finder<'t> {
    text: &'t str,
    functions: Vec<String>,
    found: Vec<Point>,
}

impl Finder<'_> {
    fn source(&self, node: &impl Spanned) -> &str {
        &self.text[node.span().byte_range()]
    }

    fn add(
        &mut self,
        span: Span,
        range: Range<usize>,
        operator: impl Into<String>,
        mutated: String,
        is_statement: bool,
    ) {
        let function = self.functions.last().cloned().unwrap_or_default();
        let operator = operator.into();
        self.found.push(Point { range, line: span.start().line, function, operator, mutated, is_statement });
    }

    fn expression(&mut self, node: &impl Spanned, operator: impl Into<String>, mutated: String) {
        self.add(node.span(), node.span().byte_range(), operator, mutated, false);
    }

    fn function(&mut self, attributes: &[Attribute], signature: &syn::Signature, body: &syn::Block) {
        let name = signature.ident.to_string();
        if !is_test(attributes) && signature.constness.is_none() && !COUNTING.contains(&name.as_str()) {
            self.functions.push(name);
            self.visit_block(body);
            self.functions.pop();
        }
    }

    /// Negates the condition of an `if`, a `while` or a guard; of a chain with `let`, its parts that have none.
    fn condition(&mut self, condition: &Expr) {
        match condition {
            Expr::Binary(ExprBinary { left, op: BinOp::And(_), right, .. }) if has_let(condition) => {
                self.condition(left);
                self.condition(right);
            }
            Expr::Let(_) => {}
            _ => self.expression(condition, "negated condition", format!("!({})", self.source(condition))),
        }
    }

    fn binary(&mut self, binary: &ExprBinary) {
        if has_let(&binary.left) || has_let(&binary.right) {
            return;
        }
        let instead = match binary.op {
            BinOp::Lt(_) => "<=",
            BinOp::Le(_) => "<",
            BinOp::Gt(_) => ">=",
            BinOp::Ge(_) => ">",
            BinOp::Eq(_) => "!=",
            BinOp::Ne(_) => "==",
            BinOp::And(_) => "||",
            BinOp::Or(_) => "&&",
            BinOp::Add(_) => "-",
            BinOp::Sub(_) => "+",
            BinOp::AddAssign(_) => "-=",
            BinOp::SubAssign(_) => "+=",
            BinOp::BitAnd(_) => "|",
            BinOp::BitOr(_) => "&",
            BinOp::Shl(_) => ">>",
            BinOp::Shr(_) => "<<",
            _ => return,
        };
        let operator = format!("{} to {instead}", self.source(&binary.op));
        let mutated = format!("{} {instead} {}", self.source(&binary.left), self.source(&binary.right));
        self.expression(binary, operator, mutated);
    }

    /// Leaves a verb out of a chain, or puts it before the one before it.
    fn verb(&mut self, call: &ExprMethodCall) {
        let Some(before) = verb_call(&call.receiver) else { return };
        let receiver = self.source(&call.receiver).to_owned();
        self.expression(call, format!("without .{}()", call.method), receiver.clone());
        let (own, other) =
            (&self.text[call.receiver.span().byte_range().end..call.span().byte_range().end], {
                &self.text[before.receiver.span().byte_range().end..before.span().byte_range().end]
            });
        let mutated = format!("{}{own}{other}", self.source(&before.receiver));
        self.expression(call, format!(".{}() before .{}()", call.method, before.method), mutated);
        // The first of the chain: what is before it is no call.
        if verb_call(&before.receiver).is_none() && matches!(*before.receiver, Expr::Path(_)) {
            let mutated = format!("(&mut {})", self.source(&before.receiver));
            self.expression(before, format!("without .{}()", before.method), mutated);
        }
    }

    fn statements(&mut self, statements: &[Stmt]) {
        for statement in statements.iter().filter(|statement| is_action(statement)) {
            let range = statement.span().byte_range();
            self.add(statement.span(), range, "statement left out", String::new(), true);
        }
        let mut rest = statements;
        while let [first, second, ..] = rest {
            // Only what waits for the network: most other statements may stand in either order.
            let waits = |statement| is_action(statement) && self.source(statement).contains(".await");
            let swaps = waits(first) && waits(second);
            if swaps {
                let range = first.span().byte_range().start..second.span().byte_range().end;
                let mutated = format!("{} {}", self.source(second), self.source(first));
                self.add(first.span(), range, "two statements swapped", mutated, true);
            }
            rest = &rest[if swaps { 2 } else { 1 }..];
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let of = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        if !is_test(&item.attrs) && of.is_none_or(|of| of.ident != "Display" && of.ident != "Debug") {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_path_arguments(&mut self, _: &'ast syn::PathArguments) {}
    fn visit_angle_bracketed_generic_arguments(&mut self, _: &'ast syn::AngleBracketedGenericArguments) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
    fn visit_macro(&mut self, _: &'ast syn::Macro) {}

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.statements(&block.stmts);
        visit::visit_block(self, block);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let Some((_, guard)) = &arm.guard {
            self.condition(guard);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr(&mut self, expression: &'ast Expr) {
        match expression {
            Expr::If(choice) => self.condition(&choice.cond),
            Expr::While(repeated) => self.condition(&repeated.cond),
            Expr::Binary(binary) => self.binary(binary),
            Expr::MethodCall(call) if COUNTERS.iter().any(|name| call.method == name) => return,
            Expr::MethodCall(call) if is_verb(call) => self.verb(call),
            Expr::MethodCall(call)
                if call.args.len() == 1 && (call.method == "min" || call.method == "max") =>
            {
                let instead = if call.method == "min" { "max" } else { "min" };
                let (receiver, argument) = (self.source(&call.receiver), self.source(&call.args[0]));
                let mutated = format!("{receiver}.{instead}({argument})");
                self.expression(call, format!("{} to {instead}", call.method), mutated);
            }
            Expr::Call(call) if self.source(&call.func) == "Some" => {
                self.expression(call, "Some to None", "None".to_owned());
            }
            Expr::Lit(literal) => match &literal.lit {
                Lit::Bool(bool) => {
                    let instead = if bool.value { "false" } else { "true" };
                    self.expression(literal, format!("{} to {instead}", bool.value), instead.to_owned());
                }
                Lit::Int(int) => {
                    if let Ok(value) = int.base10_parse::<u64>() {
                        let mutated = format!("{}{}", value.wrapping_add(1), int.suffix());
                        self.expression(literal, format!("{value} to {}", value.wrapping_add(1)), mutated);
                    }
                }
                _ => {}
            },
            Expr::Repeat(repeat) => return self.visit_expr(&repeat.expr),
            Expr::Index(index) if matches!(*index.index, Expr::Lit(_)) => {
                return self.visit_expr(&index.expr);
            }
            _ => {}
        }
        visit::visit_expr(self, expression);
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string().contains("test"),
        syn::Meta::NameValue(_) => false,
    })
}

fn has_let(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(ExprBinary { left, op: BinOp::And(_), right, .. }) => has_let(left) || has_let(right),
        _ => false,
    }
}

fn is_verb(call: &ExprMethodCall) -> bool {
    VERBS.iter().any(|name| call.method == name)
}

fn verb_call(expression: &Expr) -> Option<&ExprMethodCall> {
    match expression {
        Expr::MethodCall(call) if is_verb(call) => Some(call),
        _ => None,
    }
}

/// Tells whether a statement does something, other than a declaration, a macro, or leaving.
fn is_action(statement: &Stmt) -> bool {
    let Stmt::Expr(expression, Some(_)) = statement else { return false };
    let mut inner = expression;
    loop {
        inner = match inner {
            Expr::Try(tried) => &tried.expr,
            Expr::Await(awaited) => &awaited.base,
            Expr::MethodCall(call) => return COUNTERS.iter().all(|name| call.method != name),
            Expr::Call(_) | Expr::Assign(_) => return true,
            Expr::Binary(binary) => return matches!(binary.op, BinOp::AddAssign(_) | BinOp::SubAssign(_)),
            _ => return false,
        };
    }
}
