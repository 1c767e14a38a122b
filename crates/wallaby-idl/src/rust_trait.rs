//! The front end for a Rust trait under `#[wallaby::service]`.
//!
//! Reading goes on after an error, so that a user learns of all of them at once; a method with an error is left out of
//! the interface.

use proc_macro2::{Ident, Span, TokenStream};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::framework;
use crate::names;
use crate::report::Report;
use crate::tree::{
    Answer, Argument, Attributes, Count, Flaw, Interface, Method, Name, Place, Stream, Type,
};

/// Reads the trait `item` under `#[wallaby::service(options)]`: the interface without the methods that have errors
/// (`None` if the whole of it cannot be used), and the errors.
#[must_use]
pub fn read(options: TokenStream, item: TokenStream) -> (Option<Interface>, Option<syn::Error>) {
    let mut report = Report::default();
    let options = read_options(options, &mut report);
    let interface = match syn::parse2(item) {
        Ok(syn::Item::Trait(item)) => read_trait(item, options, &mut report),
        Ok(other) => {
            report.on(
                other,
                "expected a trait: `#[wallaby::service]` describes a service by a trait",
            );
            None
        }
        Err(error) => {
            report.add(error);
            None
        }
    };
    (interface, report.into_error())
}

/// What stands in the parentheses of `#[wallaby::service(..)]`.
#[derive(Default)]
struct Options {
    package: Option<syn::LitStr>,
    codec: Option<syn::Type>,
    framework: Option<syn::Path>,
}

fn read_options(tokens: TokenStream, report: &mut Report) -> Options {
    let mut options = Options::default();
    let result = Parser::parse2(|input: ParseStream<'_>| options.read(input, report), tokens);
    if let Err(error) = result {
        report.add(error);
    }
    options
}

impl Options {
    fn read(&mut self, input: ParseStream<'_>, report: &mut Report) -> syn::Result<()> {
        while !input.is_empty() {
            let name = input.call(Ident::parse_any)?;
            let mut again = false;
            if name == "package" {
                input.parse::<syn::Token![=]>()?;
                let value = input.parse().map_err(|error| {
                    expected(&error, "a string, like `package = \"demo.search\"`")
                })?;
                again = self.package.replace(value).is_some();
            } else if name == "codec" {
                input.parse::<syn::Token![=]>()?;
                let value = input.parse().map_err(|error| {
                    expected(&error, "a type, like `codec = wallaby::codec::Raw`")
                })?;
                again = self.codec.replace(value).is_some();
            } else if name == "crate" {
                let value = framework::read_option(input)?;
                again = self.framework.replace(value).is_some();
            } else {
                let message = format!(
                    "expected `package = \"name\"`, `codec = path::to::Codec` or `crate = path::to::wallaby`: there is no option `{name}`"
                );
                report.at(name.span(), message);
                skip_to_comma(input)?;
            }
            if again {
                report.at(name.span(), format!("the option `{name}` is there already"));
            }
            if !input.is_empty() {
                input.parse::<syn::Token![,]>()?;
            }
        }
        Ok(())
    }
}

/// The error at the same place, in words that fit.
fn expected(error: &syn::Error, what: &str) -> syn::Error {
    syn::Error::new(error.span(), format!("expected {what}"))
}

fn skip_to_comma(input: ParseStream<'_>) -> syn::Result<()> {
    while !input.is_empty() && !input.peek(syn::Token![,]) {
        input.parse::<proc_macro2::TokenTree>()?;
    }
    Ok(())
}

fn read_trait(item: syn::ItemTrait, options: Options, report: &mut Report) -> Option<Interface> {
    check_trait(&item, report);
    let has_parameters = !item.generics.params.is_empty();
    let methods = item.items.into_iter().filter_map(|item| match item {
        syn::TraitItem::Fn(method) => read_method(method, report),
        other => {
            report.on(
                other,
                "expected `async fn name(argument: Type) -> Answer;`: a service has only methods",
            );
            None
        }
    });
    let interface = Interface {
        methods: methods.collect(),
        package: options.package.as_ref().map(syn::LitStr::value),
        name: Name::new(item.ident),
        visibility: item.vis,
        attributes: sort_attributes(&item.attrs),
        codec: options.codec.map(Type::from),
        framework: options.framework,
    };
    let package = options
        .package
        .map_or_else(Span::call_site, |package| package.span());
    // Without its parameters the types of a generic trait mean nothing.
    without_flaws(interface, package, report).filter(|_| !has_parameters)
}

fn check_trait(item: &syn::ItemTrait, report: &mut Report) {
    if let Some(keyword) = item.unsafety {
        report.at(
            keyword.span,
            "expected a plain trait: a service cannot be `unsafe`",
        );
    }
    if let Some(keyword) = item.auto_token {
        report.at(
            keyword.span,
            "expected a plain trait: a service cannot be `auto`",
        );
    }
    check_generics(&item.generics, report);
    if !item.supertraits.is_empty() {
        report.on(
            &item.supertraits,
            "expected no supertraits: a service is its methods (`Send + Sync + 'static` is added to the server trait)",
        );
    }
}

fn check_generics(generics: &syn::Generics, report: &mut Report) {
    if !generics.params.is_empty() {
        report.on(
            &generics.params,
            "expected no generic parameters: callers are other programs, so the types of a service are fixed",
        );
    }
    if let Some(clause) = &generics.where_clause {
        report.on(
            clause,
            "expected no `where` clause: a service has no generic parameters",
        );
    }
}

fn read_method(method: syn::TraitItemFn, report: &mut Report) -> Option<Method> {
    let errors = report.len();
    check_signature(&method.sig, report);
    if let Some(body) = &method.default {
        report.on(
            body,
            "expected `;`: what a method does is written in an `impl` under `#[wallaby::serve]`",
        );
    }
    let arguments = method
        .sig
        .inputs
        .into_iter()
        .filter_map(|input| read_argument(input, report))
        .collect();
    let (arguments, stream) = split_stream(arguments, report);
    let answer = read_answer(method.sig.output, report);
    let method = Method {
        name: Name::new(method.sig.ident),
        attributes: sort_attributes(&method.attrs),
        arguments,
        stream,
        answer,
    };
    (report.len() == errors).then_some(method)
}

fn check_signature(signature: &syn::Signature, report: &mut Report) {
    let qualifiers = [
        signature.constness.map(|keyword| (keyword.span, "const")),
        signature.unsafety.map(|keyword| (keyword.span, "unsafe")),
        signature
            .abi
            .as_ref()
            .map(|abi| (abi.extern_token.span, "extern")),
    ];
    for (place, keyword) in qualifiers.into_iter().flatten() {
        report.at(
            place,
            format!("expected `async fn`: a method of a service cannot be `{keyword}`"),
        );
    }
    if signature.asyncness.is_none() {
        report.at(
            signature.fn_token.span,
            "expected `async fn`: whoever calls a method of a service waits for another program",
        );
    }
    if let Some(variadic) = &signature.variadic {
        report.on(variadic, "expected a fixed list of arguments");
    }
    check_generics(&signature.generics, report);
}

fn read_argument(input: syn::FnArg, report: &mut Report) -> Option<Argument> {
    let input = match input {
        syn::FnArg::Typed(input) => input,
        syn::FnArg::Receiver(receiver) => {
            report.on(
                receiver,
                "expected an argument `name: Type`: a service says what callers send; `&self` belongs to the handlers in the `impl` under `#[wallaby::serve]`",
            );
            return None;
        }
    };
    if let Some(attribute) = input.attrs.first() {
        report.on(
            attribute,
            "expected no attribute: arguments of a service method have none",
        );
    }
    check_type(&input.ty, report);
    match *input.pat {
        syn::Pat::Ident(syn::PatIdent {
            by_ref: None,
            mutability: None,
            subpat: None,
            ident,
            ..
        }) => Some(Argument {
            name: ident,
            kind: (*input.ty).into(),
        }),
        pattern => {
            report.on(
                pattern,
                "expected a name: arguments of a service method are written `name: Type`",
            );
            None
        }
    }
}

/// The arguments, and the stream that is the last of them, if there is one.
fn split_stream(
    mut arguments: Vec<Argument>,
    report: &mut Report,
) -> (Vec<Argument>, Option<Stream>) {
    let last = arguments.len().saturating_sub(1);
    for argument in arguments.iter().take(last) {
        if is_stream(argument.kind.syntax()) {
            report.on(
                &argument.kind,
                "expected one stream, as the last argument: it follows the others",
            );
        }
    }
    let stream = arguments.pop_if(|argument| is_stream(argument.kind.syntax()));
    let stream = stream.and_then(|argument| read_stream(argument, report));
    (arguments, stream)
}

fn read_stream(Argument { name, kind }: Argument, report: &mut Report) -> Option<Stream> {
    let item = match generic_arguments(kind.syntax())? {
        arguments if arguments.is_empty() && !is_streaming(kind.syntax()) => None,
        arguments => match (arguments.len(), arguments.first()) {
            (1, Some(syn::GenericArgument::Type(item))) => Some(item.clone().into()),
            _ => {
                report.on(
                    &kind,
                    "expected `Streaming<Type>`: the one type is that of an item",
                );
                return None;
            }
        },
    };
    Some(Stream {
        name,
        item,
        spelled: Some(kind),
    })
}

/// Whether this is `Streaming<..>` or `Body`, by whatever path.
fn is_stream(kind: &syn::Type) -> bool {
    let is_body = || {
        let name = last_name(kind);
        name.is_some_and(|name| name == "Body")
            && generic_arguments(kind).is_some_and(|arguments| arguments.is_empty())
    };
    is_streaming(kind) || is_body()
}

fn is_streaming(kind: &syn::Type) -> bool {
    last_name(kind).is_some_and(|name| name == "Streaming")
}

fn last_name(kind: &syn::Type) -> Option<&Ident> {
    match kind {
        syn::Type::Path(syn::TypePath { qself: None, path }) => {
            path.segments.last().map(|last| &last.ident)
        }
        _ => None,
    }
}

/// The generic arguments of the last part of a path; none where there are none.
fn generic_arguments(kind: &syn::Type) -> Option<GenericArguments> {
    let syn::Type::Path(syn::TypePath { qself: None, path }) = kind else {
        return None;
    };
    Some(match &path.segments.last()?.arguments {
        syn::PathArguments::AngleBracketed(found) => found.args.clone(),
        syn::PathArguments::None | syn::PathArguments::Parenthesized(_) => GenericArguments::new(),
    })
}

fn read_answer(output: syn::ReturnType, report: &mut Report) -> Answer {
    let syn::ReturnType::Type(_, kind) = output else {
        return Answer::done();
    };
    check_type(&kind, report);
    if is_streaming(&kind) {
        report.on(
            &kind,
            "expected `Many<Type>`: a stream of answers is any number of them",
        );
        return Answer::done();
    }
    let Some((count, name, arguments)) = as_count(&kind) else {
        return Answer::one((*kind).into());
    };
    match arguments.len() {
        1 if let Some(syn::GenericArgument::Type(item)) = arguments.first() => Answer {
            count,
            item: item.clone().into(),
            spelled: Some((*kind).into()),
        },
        _ => {
            report.on(
                &kind,
                format!("expected `{name}<Type>`: the one type is that of an answer"),
            );
            Answer::done()
        }
    }
}

type GenericArguments = syn::punctuated::Punctuated<syn::GenericArgument, syn::Token![,]>;

/// The count, its name and the generic arguments, if the type is `One<..>` or `Many<..>` by whatever path.
fn as_count(kind: &syn::Type) -> Option<(Count, &'static str, GenericArguments)> {
    let (count, name) = match last_name(kind)?.to_string().as_str() {
        "One" => (Count::One, "One"),
        "Many" => (Count::Many, "Many"),
        _ => return None,
    };
    Some((count, name, generic_arguments(kind)?))
}

/// Reports what cannot travel to another program, where the compiler's own message would speak of generated code.
fn check_type(kind: &syn::Type, report: &mut Report) {
    TypeCheck { report }.visit_type(kind);
}

struct TypeCheck<'a> {
    report: &'a mut Report,
}

impl<'ast> Visit<'ast> for TypeCheck<'_> {
    fn visit_type_reference(&mut self, reference: &'ast syn::TypeReference) {
        let message = match &*reference.elem {
            syn::Type::Path(path) if path.path.is_ident("str") => {
                "expected an owned type, like `String`"
            }
            syn::Type::Slice(_) => "expected an owned type, like `Vec`",
            _ => "expected an owned type",
        };
        self.report.on(
            reference,
            format!("{message}: arguments and answers travel to other programs"),
        );
    }

    fn visit_type_impl_trait(&mut self, found: &'ast syn::TypeImplTrait) {
        self.report.on(
            found,
            "expected a type with a name: both ends of a call have to know it, and `impl Trait` hides it",
        );
    }

    fn visit_type_infer(&mut self, found: &'ast syn::TypeInfer) {
        self.report
            .on(found, "expected a type: nothing tells what `_` should be");
    }

    fn visit_lifetime(&mut self, lifetime: &'ast syn::Lifetime) {
        if lifetime.ident != "static" {
            let message = "expected no lifetime, or `'static`: arguments and answers travel to other programs";
            self.report.at(lifetime.span(), message);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none()
            && path
                .segments
                .first()
                .is_some_and(|first| first.ident == "Self")
        {
            let message = "expected a type that callers know: `Self` is the server's own";
            self.report.at(path.segments.span(), message);
        }
        visit::visit_path(self, path);
    }
}

fn sort_attributes(attributes: &[syn::Attribute]) -> Attributes {
    let mut sorted = Attributes::default();
    for attribute in attributes {
        let name = attribute.path().get_ident().map(names::plain);
        let place = match name.as_deref() {
            Some("doc") => &mut sorted.docs,
            Some("cfg") => &mut sorted.conditions,
            Some("deprecated") => &mut sorted.notices,
            _ => &mut sorted.others,
        };
        place.push(attribute.to_token_stream());
    }
    sorted
}

/// Reports the interface's flaws and takes out the methods that have some.
fn without_flaws(
    mut interface: Interface,
    package: Span,
    report: &mut Report,
) -> Option<Interface> {
    let flaws = interface.flaws();
    for Flaw { place, message } in &flaws {
        let place = match *place {
            Place::Package => package,
            Place::Name => interface.name.rust.span(),
            Place::Method(method) => interface.methods[method].name.rust.span(),
            Place::Argument(method, argument) => {
                let name = interface.methods[method].argument_names().nth(argument);
                name.map_or_else(Span::call_site, Ident::span)
            }
        };
        report.at(place, message);
    }
    let mut index = 0;
    interface.methods.retain(|_| {
        let is_flawed = |flaw: &Flaw| match flaw.place {
            Place::Method(method) | Place::Argument(method, _) => method == index,
            Place::Package | Place::Name => false,
        };
        let is_sound = !flaws.iter().any(is_flawed);
        index += 1;
        is_sound
    });
    interface.module().is_some().then_some(interface)
}
