//! Constant expressions: numbers, names, and C's operators on them.

use super::source::{Place, Problem};
use super::token::{Kind, Token};

/// Deepest nesting of parentheses and unary operators.
const MAX_DEPTH: u32 = 64;
/// Most operators of the same strength in a row.
const MAX_OPERATORS: usize = 1000;

/// Reads tokens in order; the last one is the end.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    tokens: &'a [Token],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// `tokens` end with [`Kind::End`].
    pub(super) fn new(tokens: &'a [Token]) -> Self {
        Self { tokens, at: 0 }
    }

    pub(super) fn peek(&self) -> &'a Token {
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    pub(super) fn peek_second(&self) -> &'a Token {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)]
    }

    /// What has not been taken.
    pub(super) fn rest(&self) -> &'a [Token] {
        &self.tokens[self.at..]
    }

    pub(super) fn take(&mut self) -> &'a Token {
        let token = self.peek();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    pub(super) fn eat(&mut self, sign: &str) -> bool {
        let found = self.peek().is(sign);
        if found {
            self.take();
        }
        found
    }

    pub(super) fn expect(&mut self, sign: &str) -> Result<&'a Token, Problem> {
        if self.peek().is(sign) {
            return Ok(self.take());
        }
        Err(self.unexpected(&format!("`{sign}`")))
    }

    /// The token that was taken last.
    pub(super) fn previous(&self) -> &'a Token {
        &self.tokens[self.at.saturating_sub(1)]
    }

    pub(super) fn unexpected(&self, expected: &str) -> Problem {
        let token = self.peek();
        Problem::new(
            token.place,
            format!("expected {expected}, found {}", token.kind),
        )
    }
}

/// Where an expression stands: `#if` compares, an interface does not (there `<` and `>` are brackets).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Interface,
    Condition,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expression {
    Number(i128, Place),
    Name(String, Place),
    Unary(&'static str, Box<Self>, Place),
    Binary(&'static str, Box<Self>, Box<Self>),
    /// A condition, and what counts if it holds and if not.
    Choice(Box<[Self; 3]>),
}

impl Expression {
    pub(super) fn place(&self) -> Place {
        match self {
            Self::Number(_, place) | Self::Name(_, place) | Self::Unary(_, _, place) => *place,
            Self::Binary(_, left, _) => left.place(),
            Self::Choice(parts) => parts[0].place(),
        }
    }

    pub(super) fn parse(cursor: &mut Cursor<'_>, dialect: Dialect) -> Result<Self, Problem> {
        Self::choice(cursor, dialect, 0)
    }

    fn choice(cursor: &mut Cursor<'_>, dialect: Dialect, depth: u32) -> Result<Self, Problem> {
        let condition = Self::operators(cursor, dialect, 0, depth)?;
        if dialect != Dialect::Condition || !cursor.eat("?") {
            return Ok(condition);
        }
        let holds = Self::choice(cursor, dialect, depth + 1)?;
        cursor.expect(":")?;
        let otherwise = Self::choice(cursor, dialect, depth + 1)?;
        Ok(Self::Choice(Box::new([condition, holds, otherwise])))
    }

    fn operators(
        cursor: &mut Cursor<'_>,
        dialect: Dialect,
        least: u8,
        depth: u32,
    ) -> Result<Self, Problem> {
        let mut left = Self::operand(cursor, dialect, depth)?;
        let mut count = 0;
        while let Some((sign, strength)) = operator(cursor, dialect)
            && strength >= least
        {
            let place = cursor.take().place;
            if sign == ">>" {
                cursor.take();
            }
            count += 1;
            if count > MAX_OPERATORS {
                return Err(Problem::new(place, "the expression is too long"));
            }
            let right = Self::operators(cursor, dialect, strength + 1, depth + 1)?;
            left = Self::Binary(sign, Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    fn operand(cursor: &mut Cursor<'_>, dialect: Dialect, depth: u32) -> Result<Self, Problem> {
        let token = cursor.peek();
        if depth > MAX_DEPTH {
            return Err(Problem::new(
                token.place,
                "the expression is nested too deeply",
            ));
        }
        match &token.kind {
            Kind::Number(number) => {
                cursor.take();
                Ok(Self::Number(*number, token.place))
            }
            Kind::Name(name) => {
                cursor.take();
                Ok(Self::Name(name.clone(), token.place))
            }
            Kind::Sign("(") => {
                cursor.take();
                let inner = Self::choice(cursor, dialect, depth + 1)?;
                cursor.expect(")")?;
                Ok(inner)
            }
            Kind::Sign(sign @ ("-" | "+" | "~" | "!")) => {
                cursor.take();
                let inner = Self::operand(cursor, dialect, depth + 1)?;
                Ok(Self::Unary(sign, Box::new(inner), token.place))
            }
            _ => Err(cursor.unexpected("a number or the name of a constant")),
        }
    }

    /// The value, where `lookup` knows the names.
    pub(super) fn evaluate(
        &self,
        lookup: &mut dyn FnMut(&str, Place) -> Result<i128, Problem>,
    ) -> Result<i128, Problem> {
        let value = match self {
            Self::Number(number, _) => Some(*number),
            Self::Name(name, place) => Some(lookup(name, *place)?),
            Self::Unary(sign, inner, _) => unary(sign, inner.evaluate(lookup)?),
            Self::Binary(sign, left, right) => {
                binary(sign, left.evaluate(lookup)?, right.evaluate(lookup)?)
            }
            Self::Choice(parts) => {
                let [condition, holds, otherwise] = &**parts;
                let chosen = match condition.evaluate(lookup)? {
                    0 => otherwise,
                    _ => holds,
                };
                Some(chosen.evaluate(lookup)?)
            }
        };
        value.ok_or_else(|| Problem::new(self.place(), "the expression has no value"))
    }
}

fn operator(cursor: &Cursor<'_>, dialect: Dialect) -> Option<(&'static str, u8)> {
    let Kind::Sign(sign) = cursor.peek().kind else {
        return None;
    };
    // The lexer has no `>>`, because it is two brackets elsewhere.
    let is_shift = dialect == Dialect::Condition && sign == ">" && cursor.peek_second().is(">");
    let sign = if is_shift { ">>" } else { sign };
    let strength = match sign {
        "||" => 1,
        "&&" => 2,
        "|" => 3,
        "^" => 4,
        "&" => 5,
        "==" | "!=" => 6,
        "<" | ">" | "<=" | ">=" => 7,
        "<<" | ">>" => 8,
        "+" | "-" => 9,
        "*" | "/" | "%" => 10,
        _ => return None,
    };
    let is_comparison = matches!(strength, 1 | 2 | 6 | 7);
    (dialect == Dialect::Condition || !is_comparison).then_some((sign, strength))
}

fn unary(sign: &str, value: i128) -> Option<i128> {
    match sign {
        "-" => value.checked_neg(),
        "~" => Some(!value),
        "!" => Some(i128::from(value == 0)),
        _ => Some(value),
    }
}

fn binary(sign: &str, left: i128, right: i128) -> Option<i128> {
    let truth = |truth| Some(i128::from(truth));
    match sign {
        "||" => truth(left != 0 || right != 0),
        "&&" => truth(left != 0 && right != 0),
        "|" => Some(left | right),
        "^" => Some(left ^ right),
        "&" => Some(left & right),
        "==" => truth(left == right),
        "!=" => truth(left != right),
        "<" => truth(left < right),
        ">" => truth(left > right),
        "<=" => truth(left <= right),
        ">=" => truth(left >= right),
        "<<" => u32::try_from(right)
            .ok()
            .filter(|&by| by < 64)
            .and_then(|by| left.checked_mul(1 << by)),
        ">>" => u32::try_from(right)
            .ok()
            .and_then(|by| left.checked_shr(by)),
        "+" => left.checked_add(right),
        "-" => left.checked_sub(right),
        "*" => left.checked_mul(right),
        "/" => left.checked_div(right),
        "%" => left.checked_rem(right),
        _ => None,
    }
}
