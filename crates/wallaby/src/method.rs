//! What a method's type says: its arguments, what the initiator gets, the codec of both, and what follows.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use wallaby_proto::connection::MethodDefinition;

use crate::body::Body;
use crate::codec::{Codec, CodecError, Postcard};
use crate::reflection;

mod following;

pub use self::following::RequestBody;

/// The initiator gets exactly one answer of type `T`.
#[derive(Debug)]
pub struct One<T>(PhantomData<fn() -> T>);

/// The initiator gets any number of answers of type `T`, from anybody.
#[derive(Debug)]
pub struct Many<T>(PhantomData<fn() -> T>);

/// How many answers an initiator gets, and of which type: [`One`] or [`Many`].
pub trait Answers: sealed::Sealed + Send + 'static {
    /// The type of one answer.
    type Item: Send + 'static;
    /// Whether there is exactly one.
    const ONE: bool;
}

impl<T: Send + 'static> Answers for One<T> {
    type Item = T;
    const ONE: bool = true;
}

impl<T: Send + 'static> Answers for Many<T> {
    type Item = T;
    const ONE: bool = false;
}

/// [`Answers`] is for [`One`] and [`Many`] alone.
pub(crate) mod sealed {
    use std::sync::Arc;

    use wallaby_proto::{Address, NodeId};

    use crate::body::Body;

    #[expect(unnameable_types, reason = "a sealed trait")]
    pub trait Sealed {}

    /// A request of either driver whose handler takes what follows it.
    #[expect(unnameable_types, reason = "for the drivers alone")]
    pub trait Followed {
        /// What it calls.
        fn method(&self) -> Arc<str>;
        /// Who sent it, and where that one is reached.
        fn sender(&self) -> (Option<NodeId>, Option<Address>);
        /// Most bytes of an item.
        fn longest_item(&self) -> u64;
        /// The body, once.
        fn take_body(&mut self) -> Option<Body>;
    }

    impl<T> Sealed for super::One<T> {}
    impl<T> Sealed for super::Many<T> {}
}

/// Types that a value stands for and does not hold.
type Types<Args, A, C, B> = PhantomData<fn() -> (Args, A, C, B)>;

/// The description of a method: a `static` beside the service it belongs to.
///
/// `Args` is the tuple of its arguments, `A` what the initiator gets, `C` the codec of both, `B` what follows each request:
/// nothing (`()`), bytes ([`Body`]) or items ([`crate::Streaming`]).
///
/// ```
/// use wallaby::codec::Postcard;
/// use wallaby::{Many, Method, One, Streaming};
///
/// static LOOKUP: Method<(String,), Many<u64>> = Method::new("example.Index/lookup");
/// assert_eq!(LOOKUP.name(), "example.Index/lookup");
///
/// static LOAD: Method<(String,), One<u64>, Postcard, Streaming<u64>> = Method::new("example.Index/load");
/// let load = LOAD.target(("hop".into(),), wallaby::items([1, 2, 3]));
/// ```
pub struct Method<Args, A, C = Postcard, B = ()> {
    name: &'static str,
    definition: OnceLock<Arc<MethodDefinition>>,
    types: Types<Args, A, C, B>,
}

impl<Args, A, C, B> Method<Args, A, C, B> {
    /// A method by its full name, `package.Service/method`, of 1 to 255 bytes.
    ///
    /// # Panics
    ///
    /// If the name is empty or too long: in a `static`, the compiler says so.
    pub const fn new(name: &'static str) -> Self {
        assert!(
            !name.is_empty() && name.len() <= 255,
            "a method's name has 1 to 255 bytes"
        );
        Self {
            name,
            definition: OnceLock::new(),
            types: PhantomData,
        }
    }

    /// `package.Service/method`.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl<Args, A, C, B> Method<Args, A, C, B>
where
    A: Answers,
    C: Codec<Args> + Codec<A::Item>,
    B: RequestBody,
{
    /// What is said of the method on its first use on a connection: name, codec, fingerprints of its types.
    pub fn definition(&self) -> &Arc<MethodDefinition> {
        self.definition.get_or_init(|| {
            let (arguments, answer) = (
                B::fingerprint(<C as Codec<Args>>::fingerprint()),
                <C as Codec<A::Item>>::fingerprint(),
            );
            let definition = MethodDefinition::new(self.name, C::NAME, arguments, answer);
            let definition = definition.expect("the name's length was checked by `new`");
            // Once, and in the thread of who calls or serves it: serde is asked.
            let types = reflection::types_of::<Args, A, C, B>();
            Arc::new(definition.with_types(Some(types.into())))
        })
    }

    fn encoded(&self, args: &Args) -> Target<A, C> {
        let payload = <C as Codec<Args>>::encode(args);
        Target {
            definition: Arc::clone(self.definition()),
            payload,
            body: None,
            types: PhantomData,
        }
    }
}

impl<Args, A: Answers, C: Codec<Args> + Codec<A::Item>> Method<Args, A, C> {
    /// A delegation target: this method with these arguments.
    pub fn target(&self, args: Args) -> Target<A, C> {
        self.encoded(&args)
    }
}

impl<Args, A, C, B> fmt::Debug for Method<Args, A, C, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Method({})", self.name)
    }
}

/// What a request can be delegated to: a method and its arguments. Its type says what the initiator gets from it, so
/// that the compiler refuses one that answers something else.
#[must_use = "a target does nothing until a request is delegated to it"]
pub struct Target<A, C = Postcard> {
    pub(crate) definition: Arc<MethodDefinition>,
    pub(crate) payload: Result<Bytes, CodecError>,
    pub(crate) body: Option<Body>,
    types: PhantomData<fn() -> (A, C)>,
}

impl<A, C> Target<A, C> {
    /// A target of a method known only at run time, with arguments that are encoded already. The types are what the
    /// caller promises.
    pub fn raw(definition: Arc<MethodDefinition>, payload: Bytes) -> Self {
        Self {
            definition,
            payload: Ok(payload),
            body: None,
            types: PhantomData,
        }
    }

    /// The same with a body that follows the request, for instance the one that follows the handler's own.
    pub fn with_body(mut self, body: Body) -> Self {
        self.body = Some(body);
        self
    }
}

impl<A, C> fmt::Debug for Target<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({})", self.definition.name())
    }
}
