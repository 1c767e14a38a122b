//! An `impl` under `#[wallaby::serve]`, rewritten to the form of the server trait.
//!
//! A handler is written as what it is: `async` or blocking, answering through its `Request` or by its return value.
//! The server trait knows one form only. So each handler goes, as it was written, into a trait of its own inside the
//! trait method, where `self`, `Self` and the generics of the `impl` mean what they meant before; around it stands
//! what its form needs.
//!
//! The service's trait is not seen here. The type of a request that the user has not written out is `Self::method`, from
//! the trait `Requests` that [`emit`](crate::emit()) puts above the server trait.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};

use crate::emit::{allow_long, at, handling, local, served};
use crate::framework::{self, Framework};
use crate::names;
use crate::report::Report;

/// Expands `#[wallaby::serve]` on the `impl` block `item`: the block in the form of the server trait, or else every
/// error found, each as a `compile_error!` at the token to blame.
#[must_use]
pub fn serve(options: TokenStream, item: TokenStream) -> TokenStream {
    let mut report = Report::default();
    let framework = read_options.parse2(options).unwrap_or_else(|error| {
        report.add(error);
        None
    });
    let framework = Framework::new(framework.as_ref());
    let code = match syn::parse2(item) {
        Ok(syn::Item::Impl(item)) => serve_impl(item, &framework, &mut report),
        Ok(other) => {
            report.on(other, EXPECTED_IMPL);
            TokenStream::new()
        }
        Err(error) => {
            report.add(error);
            TokenStream::new()
        }
    };
    report
        .into_error()
        .map_or(code, syn::Error::into_compile_error)
}

/// What stands in the parentheses of `#[wallaby::serve(..)]`: `crate = path`, or nothing.
fn read_options(input: ParseStream<'_>) -> syn::Result<Option<syn::Path>> {
    if input.is_empty() {
        return Ok(None);
    }
    let name = input.call(Ident::parse_any)?;
    if name != "crate" {
        let message = format!(
            "expected `crate = path::to::wallaby`: there is no option `{name}` here; those of the service hold"
        );
        return Err(syn::Error::new(name.span(), message));
    }
    let path = framework::read_option(input)?;
    input.parse::<Option<syn::Token![,]>>()?;
    Ok(Some(path))
}

const EXPECTED_IMPL: &str =
    "expected `impl Service for Server`: `#[wallaby::serve]` implements the trait of a service";

fn serve_impl(mut item: syn::ItemImpl, framework: &Framework, report: &mut Report) -> TokenStream {
    match &item.trait_ {
        None => report.on(&item.self_ty, EXPECTED_IMPL),
        Some((Some(not), ..)) => report.on(not, EXPECTED_IMPL),
        Some(_) => {}
    }
    if let Some(keyword) = item.unsafety {
        report.at(
            keyword.span,
            "expected a plain `impl`: the trait of a service is not `unsafe`",
        );
    }
    let items = std::mem::take(&mut item.items);
    item.items = items
        .into_iter()
        .filter_map(|part| match part {
            syn::ImplItem::Fn(method) => {
                let handler = Handler::read(method, framework, report)?;
                Some(syn::ImplItem::Verbatim(handler.emit(&item)))
            }
            other => Some(other),
        })
        .collect();
    let served = served();
    item.items.push(syn::parse_quote!(const #served: () = ();));
    item.into_token_stream()
}

/// One handler as the user wrote it.
struct Handler<'a> {
    framework: &'a Framework,
    method: syn::ImplItemFn,
    receiver: syn::Receiver,
    /// The arguments with the request, if the handler takes one.
    arguments: Vec<syn::PatType>,
    takes_request: bool,
}

impl<'a> Handler<'a> {
    fn read(
        method: syn::ImplItemFn,
        framework: &'a Framework,
        report: &mut Report,
    ) -> Option<Self> {
        let errors = report.len();
        check_signature(&method, report);
        let mut inputs = method.sig.inputs.iter().cloned();
        let receiver = match inputs.next() {
            Some(syn::FnArg::Receiver(receiver)) => Some(receiver),
            _ => None,
        };
        match &receiver {
            None => report.at(
                method.sig.paren_token.span.open(),
                "expected `&self`: a handler belongs to a server and has it as its receiver",
            ),
            Some(receiver) if !is_shared_self(receiver) => {
                report.on(receiver, "expected `&self` or `self: &Arc<Self>`: a server handles many requests at once");
            }
            Some(_) => {}
        }
        let arguments = inputs.filter_map(|input| match input {
            syn::FnArg::Typed(argument) => Some(argument),
            syn::FnArg::Receiver(_) => None, // the parser has refused it
        });
        let arguments: Vec<_> = arguments.collect();
        let takes_request = arguments.first().is_some_and(|first| is_request(&first.ty));
        for argument in arguments
            .iter()
            .skip(1)
            .filter(|argument| is_request(&argument.ty))
        {
            report.on(
                &argument.ty,
                "expected an argument: the `Request` is the first, right after the receiver",
            );
        }
        let receiver = receiver.filter(|_| report.len() == errors)?;
        Some(Self {
            framework,
            method,
            receiver,
            arguments,
            takes_request,
        })
    }

    fn is_blocking(&self) -> bool {
        self.method.sig.asyncness.is_none()
    }

    /// The method of the server trait around the handler.
    fn emit(&self, item: &syn::ItemImpl) -> TokenStream {
        let attributes = self
            .method
            .attrs
            .iter()
            .filter(|attribute| belongs_outside(attribute));
        let syn::Signature {
            ident: name,
            fn_token,
            ..
        } = &self.method.sig;
        let visibility = &self.method.vis;
        let receiver = quote_spanned!(at(&self.receiver)=> self: &::std::sync::Arc<Self>);
        let request = local("request");
        let added_request =
            (!self.takes_request).then(|| quote_spanned!(at(name)=> #request: Self::#name,));
        let names = self.argument_names();
        let types = self.arguments.iter().map(|argument| &argument.ty);
        let long = allow_long(names.len() + 2);
        let handler = self.handler_trait(item);
        let handling = handling(self.framework, self.output_place());
        let answering = self.answering(&names, &request);
        let mut code = quote! {
            #(#attributes)* #long
            #visibility #fn_token #name(#receiver, #added_request #(#names: #types,)*) -> #handling
        };
        self.method
            .block
            .brace_token
            .surround(&mut code, |body| body.extend([handler, answering]));
        code
    }

    /// A trait with nothing but the handler, and its implementation: the handler as it was written.
    fn handler_trait(&self, item: &syn::ItemImpl) -> TokenStream {
        let syn::Signature {
            ident: name,
            asyncness,
            fn_token,
            output,
            ..
        } = &self.method.sig;
        let attributes = self
            .method
            .attrs
            .iter()
            .filter(|attribute| belongs_inside(attribute));
        let receiver = &self.receiver;
        let (arguments, types) = (
            &self.arguments,
            self.arguments.iter().map(|argument| &argument.ty),
        );
        let names = self.argument_names();
        let parameters: Vec<Ident> = (0..names.len())
            .map(|index| format_ident!("A{index}"))
            .collect();
        let body = &self.method.block;
        let output_type = match output {
            syn::ReturnType::Default => quote!(()),
            syn::ReturnType::Type(_, output) => output.to_token_stream(),
        };
        let declared_output = match asyncness {
            Some(_) => quote! {
                impl ::core::future::Future<Output = Self::__Returned> + ::core::marker::Send
            },
            None => quote!(Self::__Returned),
        };
        let (generics, _, clause) = item.generics.split_for_impl();
        let server = &item.self_ty;
        quote! {
            trait __WallabyHandler<#(#parameters),*> {
                type __Returned;
                fn #name(#receiver, #(#names: #parameters),*) -> #declared_output;
            }
            impl #generics __WallabyHandler<#(#types),*> for #server #clause {
                type __Returned = #output_type;
                #(#attributes)*
                #asyncness #fn_token #name(#receiver, #(#arguments),*) #output #body
            }
        }
    }

    /// Runs the handler and turns what it returns into what the server trait wants.
    fn answering(&self, names: &[Ident], request: &Ident) -> TokenStream {
        let name = &self.method.sig.ident;
        let types = names.iter().map(|_| quote!(_));
        let handler = quote!(<Self as __WallabyHandler<#(#types),*>>::#name);
        if self.takes_request && !self.is_blocking() && !self.returns_nothing() {
            return quote!(#handler(self, #(#names),*));
        }
        let output = Ident::new("output", Span::mixed_site().located_at(self.output_place()));
        let (start, running) = self.running(&handler, names, request);
        let finish = self.finishing(&output, request);
        quote! {
            #start
            async move {
                let #output = #running;
                #finish
            }
        }
    }

    /// What happens before the trait method returns its future, and an expression in the future that is the handler's
    /// output.
    fn running(
        &self,
        handler: &TokenStream,
        names: &[Ident],
        request: &Ident,
    ) -> (TokenStream, TokenStream) {
        let (server, running) = (local("server"), local("running"));
        if !self.is_blocking() {
            return (
                quote!(let #running = #handler(self, #(#names),*);),
                quote!(#running.await),
            );
        }
        let framework = self.framework;
        let output = match names {
            // A request that is dropped on a worker thread must not end before the handler's status is known.
            [request, rest @ ..] if self.takes_request => quote! {
                #framework::__private::blocking_with(#request, move |#request| {
                    #handler(&#server, #request, #(#rest),*)
                })
                .await
            },
            _ => quote! {
                #framework::__private::blocking_beside(&#request, move || #handler(&#server, #(#names),*)).await
            },
        };
        (quote!(let #server = ::std::sync::Arc::clone(self);), output)
    }

    /// Turns the handler's output into the result of the trait method; answers `request` where the handler has not.
    fn finishing(&self, output: &Ident, request: &Ident) -> TokenStream {
        if !self.takes_request {
            let place = self.output_place();
            let framework = self.framework.at(place);
            return quote_spanned! {place=>
                let #output = #framework::__private::into_answer(&#request, #output)?;
                #request.respond(#output).await.map_err(::core::convert::Into::into)
            };
        }
        if self.returns_nothing() {
            return quote! {
                let () = #output;
                ::core::result::Result::Ok(())
            };
        }
        output.to_token_stream()
    }

    /// Where a wrong return type is shown.
    fn output_place(&self) -> Span {
        match &self.method.sig.output {
            syn::ReturnType::Default => at(&self.method.sig.ident),
            syn::ReturnType::Type(_, output) => at(output),
        }
    }

    fn returns_nothing(&self) -> bool {
        match &self.method.sig.output {
            syn::ReturnType::Default => true,
            syn::ReturnType::Type(_, output) => {
                matches!(&**output, syn::Type::Tuple(unit) if unit.elems.is_empty())
            }
        }
    }

    /// Names for the arguments as the trait method passes them on: the user's own, where there are some that may be
    /// used.
    fn argument_names(&self) -> Vec<Ident> {
        let name = |(index, argument): (usize, &syn::PatType)| match &*argument.pat {
            syn::Pat::Ident(pattern) if !pattern.ident.to_string().starts_with('_') => {
                pattern.ident.clone()
            }
            _ => local(&format!("argument{index}")),
        };
        self.arguments.iter().enumerate().map(name).collect()
    }
}

fn check_signature(method: &syn::ImplItemFn, report: &mut Report) {
    let signature = &method.sig;
    let qualifiers = [
        method.defaultness.map(|keyword| (keyword.span, "default")),
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
            format!("expected `async fn` or `fn`: a handler cannot be `{keyword}`"),
        );
    }
    if !signature.generics.params.is_empty() {
        report.on(
            &signature.generics.params,
            "expected no generic parameters: the types of a service are fixed",
        );
    }
    if let Some(clause) = &signature.generics.where_clause {
        report.on(
            clause,
            "expected no `where` clause: a handler has no generic parameters",
        );
    }
    for input in &signature.inputs {
        if let syn::FnArg::Typed(argument) = input
            && let syn::Type::ImplTrait(found) = &*argument.ty
        {
            report.on(
                found,
                "expected the type that the service states: a handler has no generic parameters",
            );
        }
    }
    if let syn::ReturnType::Type(_, output) = &signature.output
        && let syn::Type::ImplTrait(found) = &**output
    {
        report.on(
            found,
            "expected a type with a name: `Result<(), Status>` with a `Request`, else the answer's",
        );
    }
}

/// Whether the receiver is `&self` or `self: &Arc<Self>`.
fn is_shared_self(receiver: &syn::Receiver) -> bool {
    let syn::Type::Reference(syn::TypeReference {
        mutability: None,
        elem,
        ..
    }) = &*receiver.ty
    else {
        return false;
    };
    let syn::Type::Path(syn::TypePath { qself: None, path }) = &**elem else {
        return false;
    };
    path.is_ident("Self") || is_arc_of_self(path)
}

fn is_arc_of_self(path: &syn::Path) -> bool {
    let Some(last) = path.segments.last() else {
        return false;
    };
    let syn::PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return false;
    };
    let is_self = |argument: &syn::GenericArgument| match argument {
        syn::GenericArgument::Type(syn::Type::Path(inner)) => inner.path.is_ident("Self"),
        _ => false,
    };
    last.ident == "Arc" && arguments.args.len() == 1 && arguments.args.iter().all(is_self)
}

/// Whether this is a `Request<..>`, by whatever path. It has generic arguments always; so a type `Request` of the
/// user's own can be an argument.
fn is_request(kind: &syn::Type) -> bool {
    let syn::Type::Path(syn::TypePath { qself: None, path }) = kind else {
        return false;
    };
    let Some(last) = path.segments.last() else {
        return false;
    };
    last.ident == "Request" && matches!(last.arguments, syn::PathArguments::AngleBracketed(_))
}

/// Attributes that speak of the method as a part of the trait.
fn belongs_outside(attribute: &syn::Attribute) -> bool {
    let name = attribute.path().get_ident().map(names::plain);
    matches!(
        name.as_deref(),
        Some("cfg" | "doc" | "deprecated" | "allow")
    )
}

/// Attributes that speak of the handler's code: lints, and macros like `#[tracing::instrument]`.
fn belongs_inside(attribute: &syn::Attribute) -> bool {
    let name = attribute.path().get_ident().map(names::plain);
    !matches!(name.as_deref(), Some("cfg" | "doc" | "deprecated"))
}
