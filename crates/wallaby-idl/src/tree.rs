//! The interface tree: what a service offers, apart from the language it was described in.
//!
//! A front end fills an [`Interface`], asks it for its [flaws](Interface::flaws), reports them in terms of its own
//! source, and hands the tree to [`emit`](crate::emit()). The tree holds no syntax of any front end; the two things
//! that can only be said in Rust, types and attributes, are held as what they are, in [`Type`] and [`Attributes`].

use std::collections::BTreeMap;
use std::fmt;

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, quote};

use crate::names;

/// Most arguments of a method: serde, which the default codec uses, is written for tuples not much longer, and a
/// longer list wants to be a struct anyway.
pub const MAX_ARGUMENTS: usize = 12;

/// Functions of the generated module that are not a method's: no method can have their names. (Nor can one be called
/// `SERVICE`, by the rules for its constant.)
pub const RESERVED_METHODS: [&str; 3] = ["at", "within", "service"];

/// A service: a name and its methods.
#[derive(Clone)]
pub struct Interface {
    /// What comes before the name in `package.Name/method`. `None`: the name of the crate that compiles the code.
    pub package: Option<String>,
    /// The name of the service, and of the server trait.
    pub name: Name,
    /// Who sees the server trait and the module beside it.
    pub visibility: syn::Visibility,
    /// Documentation and other attributes of the service.
    pub attributes: Attributes,
    /// How arguments and answers become bytes. `None`: the default codec.
    pub codec: Option<Type>,
    /// The module that is the crate `wallaby`, in the scope that the generated code goes to. `None`: `::wallaby`.
    pub framework: Option<syn::Path>,
    /// The methods, in the order of the source.
    pub methods: Vec<Method>,
}

/// One method of a service.
#[derive(Clone, Debug)]
pub struct Method {
    /// The method's name.
    pub name: Name,
    /// Documentation and other attributes of the method.
    pub attributes: Attributes,
    /// What a caller sends.
    pub arguments: Vec<Argument>,
    /// What follows it, while the request is handled already.
    pub stream: Option<Stream>,
    /// What a caller gets.
    pub answer: Answer,
}

/// One argument of a method.
#[derive(Clone, Debug)]
pub struct Argument {
    /// Its name: part of the generated functions, not of the wire format.
    pub name: Ident,
    /// Its type.
    pub kind: Type,
}

/// A stream that follows the arguments of a method: in Rust the last argument.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Its name, as that of an argument.
    pub name: Ident,
    /// The type of its items; `None` if it is one of bytes.
    pub item: Option<Type>,
    /// The whole type as the source spells it, if it does (`Streaming<Row>`), without the codec.
    pub spelled: Option<Type>,
}

/// What a caller gets from a method.
#[derive(Clone, Debug)]
pub struct Answer {
    /// How many answers.
    pub count: Count,
    /// The type of one answer.
    pub item: Type,
    /// The whole type as the source spells it, if it does (`Many<Document>`). The emitter repeats it, so that the
    /// user's own import of `Many` counts as used.
    pub spelled: Option<Type>,
}

/// How many answers a method has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Exactly one.
    One,
    /// Any number, from any server.
    Many,
}

/// A name on the wire and in Rust. The two differ where Rust needs `r#`, or where a front end follows Rust's habits
/// with names that its source writes otherwise.
#[derive(Clone, Debug)]
pub struct Name {
    /// The name that peers see.
    pub wire: String,
    /// The name in the generated code.
    pub rust: Ident,
}

impl Name {
    /// A name that is on the wire what it is in Rust, without `r#`.
    #[must_use]
    pub fn new(rust: Ident) -> Self {
        Self {
            wire: names::plain(&rust),
            rust,
        }
    }
}

/// A Rust type, as it is written in the scope that the generated code goes to.
///
/// The tree keeps whole types rather than a model of them: the emitter only ever repeats them, and a model would have
/// to know all of Rust's. A front end for another language names the types that it generates itself.
#[derive(Clone)]
pub struct Type(syn::Type);

impl Type {
    /// The type with this spelling, for front ends that have no Rust source to take it from.
    ///
    /// # Errors
    /// The text is not one Rust type.
    pub fn parse(text: &str) -> syn::Result<Self> {
        syn::parse_str(text).map(Self)
    }

    /// The type's syntax.
    #[must_use]
    pub fn syntax(&self) -> &syn::Type {
        &self.0
    }
}

impl From<syn::Type> for Type {
    fn from(syntax: syn::Type) -> Self {
        Self(syntax)
    }
}

impl fmt::Debug for Type {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Type({})", self.to_token_stream())
    }
}

impl ToTokens for Type {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        self.0.to_tokens(tokens);
    }
}

/// Rust attributes of a service or a method, sorted by where the generated code repeats them.
#[derive(Clone, Debug, Default)]
pub struct Attributes {
    /// Documentation: repeated on everything a user looks up.
    pub docs: Vec<TokenStream>,
    /// `#[cfg(..)]`: repeated on everything generated for the item.
    pub conditions: Vec<TokenStream>,
    /// `#[deprecated]`: repeated on everything a user can name.
    pub notices: Vec<TokenStream>,
    /// All others: kept on the server trait alone.
    pub others: Vec<TokenStream>,
}

impl Attributes {
    /// Attributes that are nothing but documentation, one string a line.
    #[must_use]
    pub fn documented(lines: &[&str]) -> Self {
        let docs = lines.iter().map(|line| quote!(#[doc = #line])).collect();
        Self {
            docs,
            ..Self::default()
        }
    }
}

/// A rule that an interface breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// Which part of the interface is to blame: the front end knows where that stands in its source.
    pub place: Place,
    /// What is wrong and what was expected.
    pub message: String,
}

/// A part of an [`Interface`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The package.
    Package,
    /// The name of the service.
    Name,
    /// The method with this index.
    Method(usize),
    /// Of the method with the first index, the argument with the second; a stream comes behind the arguments.
    Argument(usize, usize),
}

impl fmt::Display for Flaw {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl Interface {
    /// All rules that this interface breaks; code can be generated if there are none.
    #[must_use]
    pub fn flaws(&self) -> Vec<Flaw> {
        let package = self
            .package
            .as_deref()
            .and_then(package_flaw)
            .map(|message| (Place::Package, message));
        let name = self.name_flaw().map(|message| (Place::Name, message));
        let methods = self.methods.iter().enumerate();
        let methods = methods.flat_map(|(at, method)| method.flaws(at));
        let flaws = package
            .into_iter()
            .chain(name)
            .chain(methods)
            .chain(self.clashes());
        flaws
            .map(|(place, message)| Flaw { place, message })
            .collect()
    }

    /// The module with the client and the targets: the service's name in snake case. `None` for the few names that
    /// no module can have, and for a service that is in snake case itself; both are flaws.
    #[must_use]
    pub fn module(&self) -> Option<Ident> {
        let module = names::identifier(&self.module_name(), self.name.rust.span())?;
        (names::plain(&module) != names::plain(&self.name.rust)).then_some(module)
    }

    fn module_name(&self) -> String {
        names::snake_case(&names::plain(&self.name.rust))
    }

    fn name_flaw(&self) -> Option<String> {
        let (name, module) = (names::plain(&self.name.rust), self.module_name());
        match self.module() {
            Some(_) => None,
            None if name == module => Some(format!(
                "expected a name in camel case: the module beside the service takes its name in snake case, which is `{module}` already"
            )),
            None => Some(format!(
                "expected another name: the module beside the service would be `{module}`, which is a keyword"
            )),
        }
    }

    /// Methods that cannot be told apart, on the wire or in the generated module.
    fn clashes(&self) -> Vec<(Place, String)> {
        let mut seen: BTreeMap<String, &Method> = BTreeMap::new();
        let mut clashes = Vec::new();
        for (at, method) in self.methods.iter().enumerate() {
            let constant = method.constant().to_string();
            match seen.get(&constant) {
                // Of two methods under conditions only one need exist; if both do, the compiler says so.
                Some(first) if method.is_conditional() && first.is_conditional() => {}
                Some(first) if first.name.wire == method.name.wire => {
                    let message = format!(
                        "the method `{}` is there already: expected another name",
                        method.name.wire
                    );
                    clashes.push((Place::Method(at), message));
                }
                Some(first) => {
                    let (one, other) = (&first.name.wire, &method.name.wire);
                    let message = format!(
                        "expected a name that differs from `{one}` in more than case: the constant of `{other}` is `{constant}` too"
                    );
                    clashes.push((Place::Method(at), message));
                }
                None => drop(seen.insert(constant, method)),
            }
        }
        clashes
    }
}

impl Method {
    /// The static with the method's description: its name in capitals.
    #[must_use]
    pub fn constant(&self) -> Ident {
        let name = names::plain(&self.name.rust);
        let constant = names::identifier(&names::constant_case(&name), self.name.rust.span());
        constant.unwrap_or_else(|| self.name.rust.clone())
    }

    /// The names of its arguments, that of a stream last.
    pub fn argument_names(&self) -> impl Iterator<Item = &Ident> {
        let arguments = self.arguments.iter().map(|argument| &argument.name);
        arguments.chain(self.stream.iter().map(|stream| &stream.name))
    }

    fn is_conditional(&self) -> bool {
        !self.attributes.conditions.is_empty()
    }

    /// What is wrong with this method, which is the one with index `at`.
    fn flaws(&self, at: usize) -> Vec<(Place, String)> {
        let mut flaws = Vec::new();
        let name = names::plain(&self.name.rust);
        if RESERVED_METHODS.contains(&name.as_str()) || self.constant() == "SERVICE" {
            let message = format!(
                "expected another name: the module beside the service has a `{name}` of its own"
            );
            flaws.push((Place::Method(at), message));
        }
        if self.arguments.len() > MAX_ARGUMENTS {
            let message = format!(
                "expected at most {MAX_ARGUMENTS} arguments, found {}: gather some of them in a struct",
                self.arguments.len()
            );
            flaws.push((Place::Argument(at, MAX_ARGUMENTS), message));
        }
        let arguments: Vec<String> = self.argument_names().map(names::plain).collect();
        for (index, argument) in arguments.iter().enumerate() {
            if arguments[..index].contains(argument) {
                let message =
                    format!("the argument `{argument}` is there already: expected another name");
                flaws.push((Place::Argument(at, index), message));
            }
        }
        flaws
    }
}

impl Answer {
    /// One answer of this type, spelled without `One`.
    #[must_use]
    pub fn one(item: Type) -> Self {
        Self {
            count: Count::One,
            item,
            spelled: None,
        }
    }

    /// Any number of answers of this type.
    #[must_use]
    pub fn many(item: Type) -> Self {
        Self {
            count: Count::Many,
            item,
            spelled: None,
        }
    }

    /// The one answer that only says that the work is done.
    #[must_use]
    pub fn done() -> Self {
        Self::one(Type(syn::parse_quote!(())))
    }
}

fn package_flaw(package: &str) -> Option<String> {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    let is_part = |part: &str| !part.is_empty() && part.chars().all(is_letter);
    if !package.split('.').all(is_part) {
        return Some(format!(
            "expected names of ASCII letters, digits, `_` and `-`, separated by dots, like \"demo.search\"; found \"{package}\""
        ));
    }
    let reserved = package.split('.').next() == Some("wallaby");
    reserved.then(|| {
        "expected another package: `wallaby` is reserved for the framework's own services"
            .to_owned()
    })
}
