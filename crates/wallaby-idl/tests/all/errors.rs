//! What the macros say about wrong input. Where each error points is tested by the golden files of the crate
//! `wallaby`, which the compiler writes; here is what is found, and that all of it is.

use proc_macro2::TokenStream;
use quote::quote;
use syn::visit::{self, Visit};

/// Checks the errors that `#[wallaby::service]` reports for a trait with this one method.
fn check_method(method: TokenStream, expected: &[&str]) {
    check_service(quote!(), quote!(trait Index { #method }), expected);
}

fn check_service(options: TokenStream, item: TokenStream, expected: &[&str]) {
    check(wallaby_idl::service(options, item), expected);
}

fn check_serve(item: TokenStream, expected: &[&str]) {
    check(wallaby_idl::serve(quote!(), item), expected);
}

/// Checks that the code has these errors and no others; of each the beginning is given.
fn check(code: TokenStream, expected: &[&str]) {
    let mut errors = Errors(Vec::new());
    errors.visit_file(&syn::parse2(code).expect("the expansion is Rust"));
    let Errors(errors) = errors;
    let is_as_expected = errors.len() == expected.len()
        && errors
            .iter()
            .zip(expected)
            .all(|(error, expected)| error.starts_with(expected));
    assert!(
        is_as_expected,
        "expected {expected:#?}\nbut got {errors:#?}"
    );
}

/// The messages of all `compile_error!`s.
struct Errors(Vec<String>);

impl<'ast> Visit<'ast> for Errors {
    fn visit_macro(&mut self, found: &'ast syn::Macro) {
        if found
            .path
            .segments
            .last()
            .is_some_and(|last| last.ident == "compile_error")
        {
            self.0.push(
                found
                    .parse_body::<syn::LitStr>()
                    .expect("a message")
                    .value(),
            );
        }
        visit::visit_macro(self, found);
    }
}

const RECEIVER: &str = "expected an argument `name: Type`";
const NAME: &str = "expected a name: arguments";
const OWNED: &str = "expected an owned type";
const NO_GENERICS: &str = "expected no generic parameters";
const NO_WHERE: &str = "expected no `where` clause";

#[test]
fn good_services_have_no_errors() {
    check_service(
        quote!(),
        quote!(
            trait Empty {}
        ),
        &[],
    );
    check_service(
        quote!(package = "a-b.c_d", codec = Raw,),
        quote!(
            pub trait Index {
                async fn f(a: u8);
            }
        ),
        &[],
    );
    check_method(
        quote!(
            async fn lookup(word: Cow<'static, str>) -> Many<Option<Document>>;
        ),
        &[],
    );
    check_method(
        quote!(
            async fn work() -> Result<u8, Error>;
        ),
        &[],
    );
    check_method(
        quote!(
            async fn deadline(traced: u8) -> wallaby::One<()>;
        ),
        &[],
    );
}

#[test]
fn methods_are_async_fn() {
    check_method(
        quote!(
            fn f();
        ),
        &["expected `async fn`: whoever calls"],
    );
    check_method(
        quote!(
            unsafe fn f();
        ),
        &[
            "expected `async fn`: a method of a service cannot be `unsafe`",
            "expected `async fn`",
        ],
    );
    check_method(
        quote!(
            async fn f() {}
        ),
        &["expected `;`"],
    );
    check_method(
        quote!(
            async fn f<T>(a: T);
        ),
        &[NO_GENERICS],
    );
    check_method(
        quote!(
            async fn f()
            where
                u8: Copy;
        ),
        &[NO_WHERE],
    );
}

#[test]
fn arguments_are_names_with_owned_types() {
    check_method(
        quote!(
            async fn f(&self);
        ),
        &[RECEIVER],
    );
    check_method(
        quote!(
            async fn f(self: Arc<Self>, word: String);
        ),
        &[RECEIVER],
    );
    check_method(
        quote!(
            async fn f((a, b): (u8, u8));
        ),
        &[NAME],
    );
    check_method(
        quote!(
            async fn f(_: u8);
        ),
        &[NAME],
    );
    check_method(
        quote!(
            async fn f(mut a: u8);
        ),
        &[NAME],
    );
    check_method(
        quote!(
            async fn f(a: &str);
        ),
        &["expected an owned type, like `String`"],
    );
    check_method(
        quote!(
            async fn f(a: Vec<&[u8]>);
        ),
        &["expected an owned type, like `Vec`"],
    );
    check_method(
        quote!(
            async fn f(a: &Path);
        ),
        &[OWNED],
    );
    check_method(
        quote!(
            async fn f(a: Cow<'_, str>);
        ),
        &["expected no lifetime"],
    );
    check_method(
        quote!(
            async fn f(a: impl Clone);
        ),
        &["expected a type with a name"],
    );
    check_method(
        quote!(
            async fn f(a: Self::Word);
        ),
        &["expected a type that callers know"],
    );
    check_method(
        quote!(
            async fn f(a: _);
        ),
        &["expected a type: nothing"],
    );
    check_method(
        quote!(
            async fn f(#[a] a: u8);
        ),
        &["expected no attribute"],
    );
    check_method(
        quote!(
            async fn f(a: u8, r#a: u8);
        ),
        &["the argument `a` is there already"],
    );
    check_method(
        quote!(
            async fn f(
                a: u8,
                b: u8,
                c: u8,
                d: u8,
                e: u8,
                f: u8,
                g: u8,
                h: u8,
                i: u8,
                j: u8,
                k: u8,
                l: u8,
                m: u8,
            );
        ),
        &["expected at most 12 arguments, found 13"],
    );
}

#[test]
fn a_stream_is_the_last_argument() {
    for good in [
        quote!(
            async fn f(items: Streaming<u8>);
        ),
        quote!(
            async fn f(a: u8, items: wallaby::Streaming<Vec<u8>>) -> Many<u8>;
        ),
        quote!(
            async fn f(a: u8, bytes: wallaby::Body) -> u8;
        ),
        quote!(
            async fn f(a: Body<u8>, b: Vec<Streaming>);
        ),
    ] {
        check_method(good, &[]);
    }
    let last = "expected one stream, as the last argument";
    check_method(
        quote!(
            async fn f(items: Streaming<u8>, a: u8);
        ),
        &[last],
    );
    check_method(
        quote!(
            async fn f(bytes: Body, items: Streaming<u8>);
        ),
        &[last],
    );
    let one = "expected `Streaming<Type>`";
    check_method(
        quote!(
            async fn f(items: Streaming);
        ),
        &[one],
    );
    check_method(
        quote!(
            async fn f(items: Streaming<u8, Raw>);
        ),
        &[one],
    );
    check_method(
        quote!(
            async fn f(items: Streaming<&str>);
        ),
        &["expected an owned type, like `String`"],
    );
    check_method(
        quote!(
            async fn f(a: u8, a: Streaming<u8>);
        ),
        &["the argument `a` is there already"],
    );
    check_method(
        quote!(
            async fn f() -> Streaming<u8>;
        ),
        &["expected `Many<Type>`: a stream"],
    );
}

#[test]
fn answers_are_types_with_names() {
    check_method(
        quote!(
            async fn f() -> &'static str;
        ),
        &[OWNED],
    );
    check_method(
        quote!(
            async fn f() -> Many;
        ),
        &["expected `Many<Type>`"],
    );
    check_method(
        quote!(
            async fn f() -> One<u8, u8>;
        ),
        &["expected `One<Type>`"],
    );
    check_method(
        quote!(
            async fn f() -> Many<impl Clone>;
        ),
        &["expected a type with a name"],
    );
}

#[test]
fn services_are_traits_with_methods() {
    check_service(
        quote!(),
        quote!(
            struct Index;
        ),
        &["expected a trait"],
    );
    check_service(
        quote!(),
        quote!(
            trait Index<T> {
                async fn f(a: T);
            }
        ),
        &[NO_GENERICS],
    );
    check_service(
        quote!(),
        quote!(
            trait Index: Clone {}
        ),
        &["expected no supertraits"],
    );
    check_service(
        quote!(),
        quote!(
            unsafe trait Index {}
        ),
        &["expected a plain trait"],
    );
    check_service(
        quote!(),
        quote!(
            trait Index {
                type T;
                const C: u8;
            }
        ),
        &["expected `async fn name"; 2],
    );
}

#[test]
fn names_do_not_clash() {
    let taken = "expected another name: the module beside the service has a";
    for name in ["at", "within", "service", "Service", "SERVICE"] {
        let name = quote::format_ident!("{name}");
        check_method(quote!(async fn #name();), &[taken]);
    }
    check_method(
        quote!(
            async fn a();
            async fn a();
        ),
        &["the method `a` is there already"],
    );
    check_method(
        quote!(
            async fn getA();
            async fn get_a();
        ),
        &["expected a name that differs from `getA` in more"],
    );
    check_method(
        quote!(
            #[cfg(a)]
            async fn a();
            #[cfg(not(a))]
            async fn a();
        ),
        &[],
    );
    check_service(
        quote!(),
        quote!(
            trait index {}
        ),
        &["expected a name in camel case"],
    );
    check_service(
        quote!(),
        quote!(
            trait Super {}
        ),
        &["expected another name: the module"],
    );
}

#[test]
fn options_are_known_and_sound() {
    let item = || {
        quote!(
            trait Index {}
        )
    };
    check_service(
        quote!(name = "a", other(1, 2), package = "a"),
        item(),
        &["expected `package = \"name\"`"; 2],
    );
    check_service(
        quote!(package = "a", package = "b"),
        item(),
        &["the option `package` is there already"],
    );
    check_service(quote!(package = a), item(), &["expected a string, like"]);
    check_service(quote!(codec = "a"), item(), &["expected a type, like"]);
    check_service(
        quote!(package = "wallaby"),
        item(),
        &["expected another package"],
    );
    check_service(
        quote!(package = "wallaby.health"),
        item(),
        &["expected another package"],
    );
    check_service(quote!(package = "wallabies"), item(), &[]);
    for package in ["", ".", "a.", "a b", "a/b", "ä"] {
        check_service(
            quote!(package = #package),
            item(),
            &["expected names of ASCII letters"],
        );
    }
}

#[test]
fn all_errors_are_reported_and_sound_methods_stay() {
    let code = wallaby_idl::service(
        quote!(packet = "demo"),
        quote! {
            trait Index {
                async fn good();
                async fn lookup(&self, word: &str);
                async fn at();
            }
        },
    );
    let text = code.to_string();
    check(
        code,
        &[
            "expected `package",
            RECEIVER,
            OWNED,
            "expected another name",
        ],
    );
    assert!(
        text.contains("GOOD"),
        "a method without errors is generated"
    );
    assert!(
        !text.contains("LOOKUP") && !text.contains("static AT"),
        "a method with errors is left out"
    );
}

#[test]
fn handlers_have_a_shared_self_and_no_generics() {
    let check_handler = |handler: TokenStream, expected: &[&str]| {
        check_serve(quote!(impl Index for MyIndex { #handler }), expected);
    };
    check_handler(
        quote!(
            fn f(&self) {}
        ),
        &[],
    );
    check_handler(
        quote!(
            fn f(self: &Self) {}
        ),
        &[],
    );
    check_handler(
        quote!(
            fn f(self: &std::sync::Arc<Self>) {}
        ),
        &[],
    );
    check_handler(
        quote!(
            fn f() {}
        ),
        &["expected `&self`"],
    );
    check_handler(
        quote!(
            fn f(&mut self) {}
        ),
        &["expected `&self`"],
    );
    check_handler(
        quote!(
            fn f(self) {}
        ),
        &["expected `&self`"],
    );
    check_handler(
        quote!(
            fn f(self: Arc<Self>) {}
        ),
        &["expected `&self`"],
    );
    check_handler(
        quote!(
            fn f<T>(&self)
            where
                T: A,
            {
            }
        ),
        &[NO_GENERICS, NO_WHERE],
    );
    check_handler(
        quote!(
            fn f(&self, a: impl A) {}
        ),
        &["expected the type that the service states"],
    );
    check_handler(
        quote!(
            fn f(&self) -> impl A {}
        ),
        &["expected a type with a name"],
    );
    check_handler(
        quote!(
            const fn f(&self) {}
        ),
        &["expected `async fn` or `fn`"],
    );
    check_handler(
        quote!(
            fn f(&self, a: u8, b: Request<u8>) {}
        ),
        &["expected an argument: the `Request`"],
    );
    check_handler(
        quote!(
            fn f(&self, a: u8, b: Request) {}
        ),
        &[],
    );
}

#[test]
fn serve_is_for_implementations_of_traits() {
    let expected = "expected `impl Service for Server`";
    check_serve(quote!(impl MyIndex {}), &[expected]);
    check_serve(quote!(impl !Index for MyIndex {}), &[expected]);
    check_serve(
        quote!(
            trait Index {}
        ),
        &[expected],
    );
    check_serve(
        quote!(
            unsafe impl Index for MyIndex {}
        ),
        &["expected a plain `impl`"],
    );
    check(
        wallaby_idl::serve(quote!(blocking), quote!(impl A for B {})),
        &["expected `crate = path::to::wallaby`: there is no option `blocking`"],
    );
}
