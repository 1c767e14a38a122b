//! The interface tree as Rust code: the server trait, and beside it the module with client, targets and registration.
//!
//! What is generated refers to the framework as `::wallaby`, if the option `crate` gives no other path, and to everything
//! else by absolute paths, so that nothing a user defines or leaves out can change its meaning. Variables of the generated
//! code have the hygiene of macros: an argument may be called `request` or `server`.

mod module;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;

use crate::framework::Framework;
use crate::tree::{Answer, Attributes, Count, Interface, Method, Stream, Type};

/// The code of an interface without [flaws](Interface::flaws): the server trait and the module beside it.
///
/// An interface that no module can be named after gives no code.
#[must_use]
pub fn emit(interface: &Interface) -> TokenStream {
    let Some(name) = interface.module() else {
        return TokenStream::new();
    };
    let framework = Framework::new(interface.framework.as_ref());
    let server = server_trait(interface, &name, &framework);
    let module = module::emit(interface, &name, &framework);
    quote! { #server #module }
}

fn server_trait(interface: &Interface, module: &Ident, framework: &Framework) -> TokenStream {
    let Interface {
        name,
        visibility,
        methods,
        ..
    } = interface;
    let name = &name.rust;
    let attributes = all_attributes(&interface.attributes);
    let codec = interface.codec.as_ref().map(Type::syntax);
    let methods = methods
        .iter()
        .map(|method| server_method(method, codec, framework));
    let served = served();
    quote! {
        #attributes
        #visibility trait #name: #module::Requests + ::core::marker::Send + ::core::marker::Sync + 'static {
            #[doc(hidden)]
            #[allow(non_upper_case_globals, reason = "who reads it reads an error")]
            const #served: ();
            #(#methods)*
        }
    }
}

/// A constant of each server trait, which [`crate::serve()`] adds. So the compiler says what is missing where that was forgotten:
/// its name is the text.
pub(crate) fn served() -> Ident {
    Ident::new("MISSING_ATTRIBUTE_wallaby_serve", Span::call_site())
}

fn server_method(method: &Method, codec: Option<&syn::Type>, framework: &Framework) -> TokenStream {
    let name = &method.name.rust;
    let place = at(name);
    let attributes = all_attributes(&method.attributes);
    let long = allow_long(method.argument_names().count() + 2);
    let request = local("request");
    let placed = framework.at(place);
    let request_type = of_method(
        quote_spanned!(place=> #placed::Request),
        &answer_type(&method.answer, framework),
        codec,
    );
    let arguments = method.arguments.iter().map(|argument| {
        let (name, kind) = (&argument.name, &argument.kind);
        quote!(#name: #kind)
    });
    let stream = method.stream.as_ref().map(|stream| {
        let (name, kind) = (&stream.name, stream_type(stream, codec, framework));
        quote!(#name: #kind)
    });
    let arguments = arguments.chain(stream);
    let handling = handling(framework, place);
    quote_spanned! {place=>
        #attributes #long
        fn #name(self: &::std::sync::Arc<Self>, #request: #request_type, #(#arguments,)*) -> #handling;
    }
}

fn all_attributes(attributes: &Attributes) -> TokenStream {
    let Attributes {
        docs,
        conditions,
        notices,
        others,
    } = attributes;
    quote!(#(#docs)* #(#conditions)* #(#notices)* #(#others)*)
}

/// What a method of the server trait returns.
pub(crate) fn handling(framework: &Framework, place: Span) -> TokenStream {
    let framework = framework.at(place);
    quote_spanned! {place=>
        impl ::core::future::Future<Output = ::core::result::Result<(), #framework::Status>> + ::core::marker::Send
    }
}

/// Silences clippy about a generated function with so many arguments, some of which the user did not write.
pub(crate) fn allow_long(arguments: usize) -> Option<TokenStream> {
    const MOST_FOR_CLIPPY: usize = 7;
    let reason = "the receiver and the request are added to what the service states";
    (arguments > MOST_FOR_CLIPPY)
        .then(|| quote!(#[allow(clippy::too_many_arguments, reason = #reason)]))
}

/// Where errors about generated code are shown: at what the user wrote, though its names mean what they mean in the
/// macro.
pub(crate) fn at(written: impl ToTokens) -> Span {
    Span::call_site().located_at(written.span())
}

/// A variable of the generated code, which no name of the user's can meet.
pub(crate) fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

fn answer_type(answer: &Answer, framework: &Framework) -> syn::Type {
    if let Some(spelled) = &answer.spelled {
        return spelled.syntax().clone();
    }
    let item = &answer.item;
    match answer.count {
        Count::One => syn::parse_quote!(#framework::One<#item>),
        Count::Many => syn::parse_quote!(#framework::Many<#item>),
    }
}

/// The type of a stream for the handler, with the codec.
fn stream_type(stream: &Stream, codec: Option<&syn::Type>, framework: &Framework) -> syn::Type {
    let mut kind = match (&stream.spelled, &stream.item) {
        (Some(spelled), _) => spelled.syntax().clone(),
        (None, None) => syn::parse_quote!(#framework::Body),
        (None, Some(item)) => syn::parse_quote!(#framework::Streaming<#item>),
    };
    if let (Some(codec), syn::Type::Path(kind)) = (codec, &mut kind)
        && let Some(last) = kind.path.segments.last_mut()
        && let syn::PathArguments::AngleBracketed(arguments) = &mut last.arguments
    {
        arguments
            .args
            .push(syn::GenericArgument::Type(codec.clone()));
    }
    kind
}

/// `generic<answer>` or `generic<answer, codec>`: the default codec is left to the default of the type parameter, to
/// keep error messages and documentation short.
fn of_method(generic: TokenStream, answer: &syn::Type, codec: Option<&syn::Type>) -> TokenStream {
    let codec = codec.map(|codec| quote!(, #codec));
    quote_spanned!(generic.span()=> #generic<#answer #codec>)
}
