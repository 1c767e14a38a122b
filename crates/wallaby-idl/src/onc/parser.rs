//! Words as definitions: the grammar of RFC 4506 and RFC 5531, and what rpcgen takes besides. Written by hand: errors say what was
//! expected and where, in which file that was included, and build scripts compile no crate for parsers.

use super::expression::{Cursor, Dialect, Expression};
use super::source::{Place, Problem, Sources};
use super::syntax::{
    Arm, Declaration, Enumerator, Form, Item, ItemKind, Name, Procedure, Program, Type, TypeKind,
    Union, Version,
};
use super::token::{Comment, Kind, Token};

/// Deepest nesting of types without a name of their own.
const MAX_DEPTH: usize = 32;

const KEYWORDS: &[&str] = &[
    "bool", "case", "char", "const", "default", "double", "enum", "float", "hyper", "int", "long",
    "opaque", "program", "short", "string", "struct", "switch", "typedef", "union", "unsigned",
    "version", "void",
];

/// Reads all definitions.
pub(super) fn parse(
    tokens: &[Token],
    comments: &[Comment],
    sources: &Sources,
) -> Result<Vec<Item>, Problem> {
    let mut parser = Parser {
        cursor: Cursor::new(tokens),
        comments,
        sources,
        items: Vec::new(),
        outer: Vec::new(),
    };
    while parser.cursor.peek().kind != Kind::End {
        parser.definition()?;
    }
    Ok(parser.items)
}

struct Parser<'a> {
    cursor: Cursor<'a>,
    comments: &'a [Comment],
    sources: &'a Sources,
    items: Vec<Item>,
    /// The names that surround a type without a name, which gets its name from them.
    outer: Vec<String>,
}

impl<'a> Parser<'a> {
    fn definition(&mut self) -> Result<(), Problem> {
        let first = self.cursor.take();
        let Some(keyword) = first.name() else {
            return Err(expected_definition(first));
        };
        match keyword {
            "const" => {
                let name = self.name()?;
                self.cursor.expect("=")?;
                let kind = match &self.cursor.peek().kind {
                    Kind::Text(text) => {
                        self.cursor.take();
                        ItemKind::TextConstant(text.clone())
                    }
                    _ => ItemKind::Constant(self.expression()?),
                };
                self.item(first, name, kind)
            }
            "enum" => {
                let name = self.name()?;
                let kind = ItemKind::Enum(self.enum_body()?);
                self.item(first, name, kind)
            }
            "struct" => {
                let name = self.name()?;
                self.outer.push(name.text.clone());
                let kind = ItemKind::Struct(self.struct_body()?);
                self.outer.pop();
                self.item(first, name, kind)
            }
            "union" => {
                let name = self.name()?;
                self.outer.push(name.text.clone());
                let kind = ItemKind::Union(Box::new(self.union_body()?));
                self.outer.pop();
                self.item(first, name, kind)
            }
            "typedef" => self.typedef(first),
            "program" => {
                let name = self.name()?;
                let versions = self.program_body()?;
                self.cursor.expect("=")?;
                let number = self.expression()?;
                self.item(first, name, ItemKind::Program(Program { number, versions }))
            }
            _ => Err(expected_definition(first)),
        }
    }

    /// Ends a definition.
    fn item(&mut self, first: &Token, name: Name, kind: ItemKind) -> Result<(), Problem> {
        self.cursor.expect(";")?;
        let docs = self.docs(first.place, self.cursor.previous().place);
        self.items.push(Item { name, docs, kind });
        Ok(())
    }

    fn typedef(&mut self, first: &Token) -> Result<(), Problem> {
        let next = self.cursor.peek_second();
        let is_body = next.is("{") || next.name() == Some("switch");
        if is_body && let Some(keyword @ ("enum" | "struct" | "union")) = self.cursor.peek().name()
        {
            let name = self.name_after_body();
            // `typedef enum {..} name` defines the type itself.
            if self.after_body().get(1).is_some_and(|next| next.is(";")) {
                self.cursor.take();
                self.outer.push(name);
                let kind = self.body(keyword)?;
                self.outer.pop();
                let name = self.name()?;
                return self.item(first, name, kind);
            }
            self.outer.push(name);
        }
        let declaration = self.declaration()?;
        self.outer.clear();
        if let Form::Void = declaration.form {
            let message = "expected a type with values: `void` has none";
            return Err(Problem::new(declaration.name.place, message));
        }
        let name = declaration.name.clone();
        self.item(first, name, ItemKind::Typedef(declaration))
    }

    fn body(&mut self, keyword: &str) -> Result<ItemKind, Problem> {
        Ok(match keyword {
            "enum" => ItemKind::Enum(self.enum_body()?),
            "struct" => ItemKind::Struct(self.struct_body()?),
            _ => ItemKind::Union(Box::new(self.union_body()?)),
        })
    }

    fn enum_body(&mut self) -> Result<Vec<Enumerator>, Problem> {
        self.cursor.expect("{")?;
        let mut enumerators = Vec::new();
        loop {
            let first = self.cursor.peek();
            let name = self.name()?;
            let value = if self.cursor.eat("=") {
                Some(self.expression()?)
            } else {
                None
            };
            let is_last = !self.cursor.eat(",");
            let docs = self.docs(first.place, self.cursor.previous().place);
            enumerators.push(Enumerator { name, value, docs });
            // C takes a comma after the last one, and so do files.
            if is_last || self.cursor.peek().is("}") {
                break;
            }
        }
        self.close("`,` or `}`")?;
        Ok(enumerators)
    }

    fn close(&mut self, expected: &str) -> Result<(), Problem> {
        if self.cursor.eat("}") {
            return Ok(());
        }
        Err(self.cursor.unexpected(expected))
    }

    fn struct_body(&mut self) -> Result<Vec<Declaration>, Problem> {
        self.cursor.expect("{")?;
        let mut fields = Vec::new();
        while !self.cursor.peek().is("}") {
            let field = self.content()?;
            if let Form::Void = field.form {
                let message = "expected a field: `void` stands in unions and procedures only";
                return Err(Problem::new(field.name.place, message));
            }
            fields.push(field);
        }
        self.close("`}`")?;
        Ok(fields)
    }

    fn union_body(&mut self) -> Result<Union, Problem> {
        if self.cursor.peek().name() != Some("switch") {
            return Err(self.cursor.unexpected("`switch`"));
        }
        self.cursor.take();
        self.cursor.expect("(")?;
        let discriminant = self.declaration()?;
        self.cursor.expect(")")?;
        self.cursor.expect("{")?;
        let mut arms = Vec::new();
        let mut default = None;
        loop {
            match self.cursor.peek().name() {
                Some("case") => {
                    let mut cases = Vec::new();
                    while self.cursor.peek().name() == Some("case") {
                        self.cursor.take();
                        cases.push(self.expression()?);
                        self.cursor.expect(":")?;
                    }
                    let content = self.content()?;
                    arms.push(Arm { cases, content });
                }
                Some("default") if default.is_none() => {
                    self.cursor.take();
                    self.cursor.expect(":")?;
                    default = Some(self.content()?);
                }
                _ => break,
            }
        }
        if arms.is_empty() {
            return Err(self.cursor.unexpected("`case`"));
        }
        self.close("`case`, `default` (once) or `}`")?;
        Ok(Union {
            discriminant,
            arms,
            default,
        })
    }

    /// A declaration with its semicolon: a field, or what an arm holds.
    fn content(&mut self) -> Result<Declaration, Problem> {
        let first = self.cursor.peek();
        let mut declaration = self.declaration()?;
        self.cursor.expect(";")?;
        declaration.docs = self.docs(first.place, self.cursor.previous().place);
        Ok(declaration)
    }

    fn declaration(&mut self) -> Result<Declaration, Problem> {
        let first = self.cursor.peek();
        if first.name() == Some("void") {
            self.cursor.take();
            return Ok(Declaration {
                name: Name {
                    text: String::new(),
                    place: first.place,
                },
                form: Form::Void,
                docs: Vec::new(),
            });
        }
        let kind = self.type_name()?;
        let is_optional = self.cursor.eat("*");
        let name = self.name()?;
        let form = self.form(kind, is_optional)?;
        Ok(Declaration {
            name,
            form,
            docs: Vec::new(),
        })
    }

    /// What follows a name: brackets, or nothing.
    fn form(&mut self, kind: Type, is_optional: bool) -> Result<Form, Problem> {
        let next = self.cursor.peek();
        if is_optional {
            return match kind.kind {
                TypeKind::Opaque | TypeKind::String => Err(Problem::new(
                    kind.place,
                    "expected a type that can be optional: give this one a name with `typedef` first",
                )),
                _ if next.is("[") || next.is("<") => Err(Problem::new(
                    next.place,
                    "an array of optional values needs a name for them: use `typedef` first",
                )),
                _ => Ok(Form::Optional(kind)),
            };
        }
        if self.cursor.eat("[") {
            if kind.kind == TypeKind::String {
                let message = "expected `<`: the length of a string varies";
                return Err(Problem::new(next.place, message));
            }
            let length = self.expression()?;
            self.cursor.expect("]")?;
            return Ok(Form::Fixed(kind, length));
        }
        if self.cursor.eat("<") {
            let limit = if self.cursor.peek().is(">") {
                None
            } else {
                Some(self.expression()?)
            };
            self.cursor.expect(">")?;
            return Ok(Form::Variable(kind, limit));
        }
        match kind.kind {
            TypeKind::Opaque => Err(self
                .cursor
                .unexpected("`[` or `<`: opaque data has a length")),
            TypeKind::String => Err(self.cursor.unexpected("`<`: a string has a length")),
            _ => Ok(Form::Plain(kind)),
        }
    }

    fn type_name(&mut self) -> Result<Type, Problem> {
        let token = self.cursor.peek();
        let Some(word) = token.name() else {
            return Err(self.cursor.unexpected("a type"));
        };
        if let "struct" | "union" | "enum" = word {
            return self.tagged_type(word);
        }
        self.cursor.take();
        let kind = match word {
            "unsigned" => self.integer("u32", "u64", "u16", "u8"),
            "int" => TypeKind::Scalar("i32"),
            "long" => {
                self.eat_word("int");
                TypeKind::Scalar("i32")
            }
            "short" => {
                self.eat_word("int");
                TypeKind::Scalar("i16")
            }
            "char" => TypeKind::Scalar("i8"),
            "hyper" => {
                self.eat_word("int");
                TypeKind::Scalar("i64")
            }
            "float" => TypeKind::Scalar("f32"),
            "double" => TypeKind::Scalar("f64"),
            "bool" => TypeKind::Scalar("bool"),
            "opaque" => TypeKind::Opaque,
            "string" => TypeKind::String,
            _ if KEYWORDS.contains(&word) => {
                let message = format!("expected a type, found `{word}`");
                return Err(Problem::new(token.place, message));
            }
            _ => TypeKind::Named(word.to_owned()),
        };
        Ok(Type {
            kind,
            place: token.place,
        })
    }

    /// What follows `unsigned`.
    fn integer(
        &mut self,
        int: &'static str,
        hyper: &'static str,
        short: &'static str,
        char: &'static str,
    ) -> TypeKind {
        let scalar = match self.cursor.peek().name() {
            Some("int" | "long") => int,
            Some("hyper") => hyper,
            Some("char") => char,
            Some("short") => short,
            _ => return TypeKind::Scalar(int),
        };
        if let Some("hyper" | "long" | "short") = self.cursor.take().name() {
            self.eat_word("int");
        }
        TypeKind::Scalar(scalar)
    }

    fn eat_word(&mut self, word: &str) {
        if self.cursor.peek().name() == Some(word) {
            self.cursor.take();
        }
    }

    /// `struct name`, or a body, which becomes a definition of its own, named after what surrounds it.
    fn tagged_type(&mut self, keyword: &str) -> Result<Type, Problem> {
        let first = self.cursor.take();
        let next = self.cursor.peek();
        if !next.is("{") && next.name() != Some("switch") {
            let name = self.name()?;
            return Ok(Type {
                kind: TypeKind::Named(name.text),
                place: name.place,
            });
        }
        if self.outer.len() >= MAX_DEPTH {
            return Err(Problem::new(first.place, "types are nested too deeply"));
        }
        // The name stands after the body; what is within the body needs it for its own names.
        self.outer.push(self.name_after_body());
        let kind = self.body(keyword)?;
        // No name in a file has a dot.
        let text = self.outer.join(".");
        self.outer.pop();
        let name = Name {
            text: text.clone(),
            place: first.place,
        };
        let docs = Vec::new();
        self.items.push(Item { name, docs, kind });
        Ok(Type {
            kind: TypeKind::Named(text),
            place: first.place,
        })
    }

    /// The name after the braces that are about to open, without reading them. Empty if there is none: then the
    /// body is read, and the error found where the name is missing.
    fn name_after_body(&self) -> String {
        let mut after = self.after_body().iter();
        let name = after.find(|token| !token.is("*"));
        name.and_then(Token::name).unwrap_or_default().to_owned()
    }

    /// What stands after the braces that are about to open. A union's brackets stand before them.
    fn after_body(&self) -> &'a [Token] {
        let mut depth = 0_usize;
        let rest = self.cursor.rest();
        for (at, token) in rest.iter().enumerate() {
            if token.is("{") || token.is("(") {
                depth += 1;
            } else if token.is("}") || token.is(")") {
                depth = depth.saturating_sub(1);
                if depth == 0 && token.is("}") {
                    return &rest[at + 1..];
                }
            }
        }
        &[]
    }

    fn program_body(&mut self) -> Result<Vec<Version>, Problem> {
        self.cursor.expect("{")?;
        let mut versions = Vec::new();
        while self.cursor.peek().name() == Some("version") {
            let first = self.cursor.take();
            let name = self.name()?;
            self.cursor.expect("{")?;
            let mut procedures = Vec::new();
            while !self.cursor.peek().is("}") {
                procedures.push(self.procedure()?);
            }
            self.close("`}`")?;
            self.cursor.expect("=")?;
            let number = self.expression()?;
            self.cursor.expect(";")?;
            let docs = self.docs(first.place, self.cursor.previous().place);
            versions.push(Version {
                name,
                number,
                procedures,
                docs,
            });
        }
        if versions.is_empty() {
            return Err(self.cursor.unexpected("`version`"));
        }
        self.close("`version` or `}`")?;
        Ok(versions)
    }

    fn procedure(&mut self) -> Result<Procedure, Problem> {
        let first = self.cursor.peek();
        let (_, result) = self.unnamed(false)?;
        let name = self.name()?;
        self.cursor.expect("(")?;
        let mut arguments = Vec::new();
        if !self.cursor.peek().is(")") {
            loop {
                arguments.push(self.unnamed(true)?);
                if !self.cursor.eat(",") {
                    break;
                }
            }
        }
        let end = self.cursor.expect(")")?;
        let is_void = |(_, form): &(Option<Name>, Form)| matches!(form, Form::Void);
        match arguments.iter().position(is_void) {
            Some(_) if arguments.len() == 1 => arguments.clear(),
            Some(_) => {
                let message = "`void` cannot stand among other arguments";
                return Err(Problem::new(end.place, message));
            }
            None => {}
        }
        self.cursor.expect("=")?;
        let number = self.expression()?;
        self.cursor.expect(";")?;
        let docs = self.docs(first.place, self.cursor.previous().place);
        Ok(Procedure {
            name,
            number,
            result,
            arguments,
            docs,
        })
    }

    /// A result or an argument. A string needs no brackets there; an argument may have a name.
    fn unnamed(&mut self, may_have_name: bool) -> Result<(Option<Name>, Form), Problem> {
        if self.cursor.peek().name() == Some("void") {
            self.cursor.take();
            return Ok((None, Form::Void));
        }
        let kind = self.type_name()?;
        let is_optional = self.cursor.eat("*");
        let name = if may_have_name && self.cursor.peek().name().is_some() {
            Some(self.name()?)
        } else {
            None
        };
        let next = self.cursor.peek();
        let form = if is_optional || next.is("<") || next.is("[") {
            self.form(kind, is_optional)?
        } else {
            Self::bare(kind)?
        };
        Ok((name, form))
    }

    /// A type that has no brackets after it.
    fn bare(kind: Type) -> Result<Form, Problem> {
        match kind.kind {
            TypeKind::String => Ok(Form::Variable(kind, None)),
            TypeKind::Opaque => {
                let message = "opaque data has a length: give it a name with `typedef` first";
                Err(Problem::new(kind.place, message))
            }
            _ => Ok(Form::Plain(kind)),
        }
    }

    fn expression(&mut self) -> Result<Expression, Problem> {
        Expression::parse(&mut self.cursor, Dialect::Interface)
    }

    fn name(&mut self) -> Result<Name, Problem> {
        let token = self.cursor.peek();
        match token.name() {
            Some(text) if KEYWORDS.contains(&text) => {
                let message = format!("expected a name, found the keyword `{text}`");
                Err(Problem::new(token.place, message))
            }
            Some(text) => {
                self.cursor.take();
                Ok(Name {
                    text: text.to_owned(),
                    place: token.place,
                })
            }
            None => Err(self.cursor.unexpected("a name")),
        }
    }

    /// The comment right above the first token, or beside the last one.
    fn docs(&self, first: Place, last: Place) -> Vec<String> {
        let (first_line, last_line) = (self.sources.line(first), self.sources.line(last));
        let above = |comment: &&Comment| {
            comment.is_alone && comment.file == first.file && comment.last_line + 1 == first_line
        };
        let beside = |comment: &&Comment| {
            !comment.is_alone
                && comment.file == last.file
                && comment.first_line == last_line
                && comment.start > last.start
        };
        let beside = self.comments.iter().find(beside);
        let found = beside.or_else(|| self.comments.iter().find(above));
        found
            .map(|comment| comment.text.clone())
            .unwrap_or_default()
    }
}

fn expected_definition(token: &Token) -> Problem {
    let message = format!(
        "expected `const`, `enum`, `struct`, `union`, `typedef` or `program`, found {}",
        token.kind
    );
    Problem::new(token.place, message)
}
