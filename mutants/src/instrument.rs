//! Writes all mutants of a file into it, each behind a switch that is off.
//!
//! `a + b` with mutants 4 and 5 becomes `match (a, b) { (l_, r_) => if mutant(4) { l - r } else if mutant(5) { l * r } else
//! { l + r } }`; a function begins with `if mutant(7) { return 0; }`. Each switch is on a line of its own, so that what
//! does not compile says which mutant it is.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::Result;
use proc_macro2::{LineColumn, Span};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::mutant::{Kind, Mutant, Place};

/// A file with its mutants in it, and which they are.
pub(crate) struct Instrumented {
    pub(crate) text: String,
    pub(crate) placed: Vec<usize>,
}

/// Puts those of `mutants`, by number, into `source`. What is evaluated at compile time, and some rarer forms, have no
/// switch: their mutants are not `placed`.
pub(crate) fn instrument<'a>(
    source: &str,
    mutants: impl Iterator<Item = (usize, &'a Mutant)>,
) -> Result<Instrumented> {
    let mut at: BTreeMap<Place, Vec<(usize, &Mutant)>> = BTreeMap::new();
    for (number, mutant) in mutants {
        at.entry(mutant.start).or_default().push((number, mutant));
    }
    let mut writer = Writer {
        source,
        lines: line_starts(source),
        at,
        edits: Vec::new(),
        placed: Vec::new(),
    };
    writer.visit_file(&syn::parse_file(source)?);
    let text = writer.take(0..source.len());
    let placed = writer.placed;
    Ok(Instrumented { text, placed })
}

fn line_starts(source: &str) -> Vec<usize> {
    let ends = source.match_indices('\n').map(|(at, _)| at + 1);
    std::iter::once(0).chain(ends).collect()
}

struct Writer<'a> {
    source: &'a str,
    lines: Vec<usize>,
    at: BTreeMap<Place, Vec<(usize, &'a Mutant)>>,
    /// What is replaced by what; no two overlap.
    edits: Vec<(Range<usize>, String)>,
    placed: Vec<usize>,
}

impl<'a> Writer<'a> {
    fn offset(&self, place: LineColumn) -> usize {
        let line = self.lines[place.line - 1];
        let rest = self.source[line..].char_indices();
        let mut offsets = rest.map(|(at, _)| line + at);
        offsets.nth(place.column).unwrap_or(self.source.len())
    }

    fn range(&self, span: Span) -> Range<usize> {
        self.offset(span.start())..self.offset(span.end())
    }

    /// The text of a part with what has been changed in it, which is then forgotten.
    fn take(&mut self, range: Range<usize>) -> String {
        let inside = |edit: &Range<usize>| range.start <= edit.start && edit.end <= range.end;
        let all = std::mem::take(&mut self.edits);
        let (mut edits, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(edit, _)| inside(edit));
        self.edits = others;
        edits.sort_by_key(|(edit, _)| edit.start);
        let (mut text, mut end) = (String::new(), range.start);
        for (edit, replacement) in edits {
            text += &self.source[end..edit.start];
            text += &replacement;
            end = edit.end;
        }
        text + &self.source[end..range.end]
    }

    fn replace(&mut self, span: Span, text: String) {
        let range = self.range(span);
        self.edits.push((range, text));
    }

    /// The mutants of a kind that begin at a place, which then have been placed.
    fn mutants(&mut self, kind: Kind, place: LineColumn) -> Vec<(usize, &'a Mutant)> {
        let place = Place {
            line: place.line,
            column: place.column + 1,
        };
        let all = self.at.get(&place).into_iter().flatten();
        let found: Vec<_> = all
            .filter(|(_, mutant)| mutant.kind == kind)
            .copied()
            .collect();
        self.placed.extend(found.iter().map(|(number, _)| number));
        found
    }

    /// `if mutant(4) { FIRST } else if mutant(5) { SECOND } else { PLAIN }`
    fn choice(
        mutants: &[(usize, &Mutant)],
        plain: &str,
        change: impl Fn(&str) -> String,
    ) -> String {
        let mut text = String::new();
        for (number, mutant) in mutants {
            let changed = change(&mutant.replacement);
            text += &format!("\nif crate::mutant({number}) {{ {changed} }} else\n");
        }
        text + &format!("{{ {plain} }}")
    }

    fn binary(&mut self, binary: &syn::ExprBinary) {
        let operator = self.range(binary.op.span());
        let operator = &self.source[operator];
        if matches!(operator, "&&" | "||") && has_let(&binary.left, &binary.right) {
            return;
        }
        let mutants = self.mutants(Kind::Binary, binary.op.span().start());
        if mutants.is_empty() {
            return;
        }
        let left = self.take(self.range(binary.left.span()));
        let right = self.take(self.range(binary.right.span()));
        let text = match operator {
            "&&" | "||" => lazy(&mutants, operator, &left, &right),
            "==" | "!=" | "<" | ">" | "<=" | ">=" => {
                let choice = Self::choice(&mutants, &format!("*l_ {operator} *r_"), |other| {
                    format!("*l_ {other} *r_")
                });
                format!("(match (&({left}), &({right})) {{ (l_, r_) => {choice} }})")
            }
            _ if operator.ends_with('=') => {
                let choice = Self::choice(&mutants, &format!("{left} {operator} r_"), |other| {
                    format!("{left} {other} r_")
                });
                format!("(match {right} {{ r_ => {choice} }})")
            }
            _ => {
                let choice = Self::choice(&mutants, &format!("l_ {operator} r_"), |other| {
                    format!("l_ {other} r_")
                });
                format!("(match ({left}, {right}) {{ (l_, r_) => {choice} }})")
            }
        };
        self.replace(binary.span(), text);
    }

    fn unary(&mut self, unary: &syn::ExprUnary) {
        let mutants = self.mutants(Kind::Unary, unary.op.span().start());
        if mutants.is_empty() {
            return;
        }
        let operator = self.range(unary.op.span());
        let operand = self.take(self.range(unary.expr.span()));
        let plain = format!("{}x_", &self.source[operator]);
        let choice = Self::choice(&mutants, &plain, |_| "x_".to_owned());
        self.replace(
            unary.span(),
            format!("(match {operand} {{ x_ => {choice} }})"),
        );
    }

    fn body(&mut self, block: &syn::Block) {
        let Some(first) = block.stmts.first() else {
            return;
        };
        let mut text = String::new();
        for (number, mutant) in self.mutants(Kind::Body, first.span().start()) {
            text += &format!(
                "\nif crate::mutant({number}) {{ return {}; }}\n",
                mutant.replacement
            );
        }
        let start = self.offset(block.brace_token.span.open().end());
        if !text.is_empty() {
            self.edits.push((start..start, text));
        }
    }

    fn arm(&mut self, arm: &syn::Arm) {
        let deleted = self.mutants(Kind::Arm, arm.span().start());
        let guard = arm.guard.as_ref().map(|(_, guard)| guard);
        let mut text = String::new();
        for (number, _) in deleted {
            text += &format!("\n!crate::mutant({number}) &&\n");
        }
        let Some(guard) = guard else {
            if !text.is_empty() {
                let end = self.offset(arm.pat.span().end());
                self.edits.push((end..end, format!(" if {text} true")));
            }
            return;
        };
        let guards = self.mutants(Kind::Guard, guard.span().start());
        if text.is_empty() && guards.is_empty() {
            return;
        }
        let plain = self.take(self.range(guard.span()));
        let choice = Self::choice(&guards, &plain, str::to_owned);
        self.replace(guard.span(), format!("{text} ({choice})"));
    }
}

/// `a && b` becomes `a || b`, or the other way round: whether `a` decides is the other way round.
fn lazy(mutants: &[(usize, &Mutant)], operator: &str, left: &str, right: &str) -> String {
    let mut switches = String::from("false");
    for (number, _) in mutants {
        switches += &format!("\n|| crate::mutant({number})\n");
    }
    let same = if operator == "&&" { "!=" } else { "==" };
    format!("(match {left} {{ l_ => if l_ {same} ({switches}) {{ {right} }} else {{ l_ }} }})")
}

/// Whether `if let .. && ..` would have to be taken apart.
fn has_let(left: &syn::Expr, right: &syn::Expr) -> bool {
    [left, right].into_iter().any(|side| match side {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => has_let(&binary.left, &binary.right),
        _ => false,
    })
}

/// Children first, so that what is taken up has been changed already.
impl<'ast> Visit<'ast> for Writer<'_> {
    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        visit::visit_expr_binary(self, binary);
        self.binary(binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        visit::visit_expr_unary(self, unary);
        self.unary(unary);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        visit::visit_arm(self, arm);
        self.arm(arm);
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if function.sig.constness.is_none() {
            self.visit_block(&function.block);
            self.body(&function.block);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if function.sig.constness.is_none() {
            self.visit_block(&function.block);
            self.body(&function.block);
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.visit_block(block);
            self.body(block);
        }
    }

    // What follows is evaluated by the compiler, or is a pattern.

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}

    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}

    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}

    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}

    fn visit_variant(&mut self, _: &'ast syn::Variant) {}

    fn visit_type(&mut self, _: &'ast syn::Type) {}

    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_pat(&mut self, _: &'ast syn::Pat) {}

    fn visit_macro(&mut self, _: &'ast syn::Macro) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(kind: Kind, column: usize, replacement: &str) -> Mutant {
        let place = |column| Place { line: 1, column };
        Mutant {
            name: String::new(),
            file: String::new(),
            kind,
            start: place(column),
            end: place(column + 1),
            replacement: replacement.to_owned(),
        }
    }

    fn check(source: &str, mutants: &[Mutant], expected: &str) {
        let numbered = mutants.iter().enumerate();
        let found = instrument(source, numbered).expect("it is Rust");
        let words: Vec<&str> = found.text.split_whitespace().collect();
        assert_eq!(words.join(" "), expected);
    }

    #[test]
    fn operands_are_evaluated_once_whatever_the_operator() {
        check(
            "fn f() { a() + b() }",
            &[mutant(Kind::Binary, 14, "-"), mutant(Kind::Binary, 14, "*")],
            "fn f() { (match (a(), b()) { (l_, r_) => if crate::mutant(0) { l_ - r_ } else \
             if crate::mutant(1) { l_ * r_ } else { l_ + r_ } }) }",
        );
        check(
            "fn f() { a = !b && c }",
            &[mutant(Kind::Unary, 14, ""), mutant(Kind::Binary, 17, "||")],
            "fn f() { a = (match (match b { x_ => if crate::mutant(0) { x_ } else { !x_ } }) { l_ => \
             if l_ != (false || crate::mutant(1) ) { c } else { l_ } }) }",
        );
    }

    #[test]
    fn a_body_returns_and_an_arm_is_passed_over() {
        check(
            "fn f() { match a { 1 => b, _ if c => d, _ => e } }",
            &[
                mutant(Kind::Body, 10, "0"),
                mutant(Kind::Arm, 20, ""),
                mutant(Kind::Guard, 33, "true"),
            ],
            "fn f() { if crate::mutant(0) { return 0; } match a { 1 if !crate::mutant(1) && true => b, \
             _ if ( if crate::mutant(2) { true } else { c }) => d, _ => e } }",
        );
    }

    #[test]
    fn what_the_compiler_evaluates_is_left_alone() {
        let source = "const A: u8 = 1 + 2;";
        let all = [mutant(Kind::Binary, 17, "-")];
        let left = instrument(source, all.iter().enumerate()).expect("it is Rust");
        assert_eq!((&*left.text, left.placed.len()), (source, 0));
        assert_eq!(all[0].apply(source), "const A: u8 = 1 - 2;");
    }
}
