//! Messages written as tables instead of generated: for what every pod carries, so that texts which repeat
//! are interned while they are decoded.

use prost::{
    DecodeError, Message,
    bytes::{Buf, BufMut},
    encoding::{self, DecodeContext, WireType},
};

use crate::{
    Shared, Str,
    meta::{Time, encode_text, merge_interned, merge_many, merge_single, merge_time, text_len},
    wire::merge,
};

/// A field's encoding on the wire and its type in memory.
pub trait Field {
    /// What holds it.
    type Held: Default + PartialEq;

    /// Writes it, unless it is the default.
    fn encode(tag: u32, held: &Self::Held, buf: &mut impl BufMut);

    /// Reads it.
    fn merge(
        tag: u32,
        wire_type: WireType,
        held: &mut Self::Held,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError>;

    /// How many bytes [`Field::encode`] writes.
    fn len(tag: u32, held: &Self::Held) -> usize;
}

/// A text; the empty one is not written.
macro_rules! text {
    ($(#[$doc:meta])* $name:ident, $merge:ident) => {
        $(#[$doc])*
        pub struct $name;

        impl Field for $name {
            type Held = Str;
            fn encode(tag: u32, held: &Str, buf: &mut impl BufMut) {
                encode_text(tag, held, buf);
            }
            fn merge(
                _: u32,
                wire_type: WireType,
                held: &mut Str,
                buf: &mut impl Buf,
                ctx: DecodeContext,
            ) -> Result<(), DecodeError> {
                *held = $merge(wire_type, buf, ctx)?;
                Ok(())
            }
            fn len(tag: u32, held: &Str) -> usize {
                text_len(tag, held)
            }
        }
    };
}
text!(
    /// A text that repeats from object to object: interned.
    Word,
    merge_interned
);
text!(
    /// A text of one object alone.
    Text,
    merge_single
);

/// A number or boolean; the default is not written.
macro_rules! scalar {
    ($(#[$doc:meta])* $name:ident, $held:ty, $codec:ident) => {
        $(#[$doc])*
        pub struct $name;

        impl Field for $name {
            type Held = $held;
            fn encode(tag: u32, held: &$held, buf: &mut impl BufMut) {
                if *held != <$held>::default() {
                    encoding::$codec::encode(tag, held, buf);
                }
            }
            fn merge(
                _: u32,
                wire_type: WireType,
                held: &mut $held,
                buf: &mut impl Buf,
                ctx: DecodeContext,
            ) -> Result<(), DecodeError> {
                encoding::$codec::merge(wire_type, held, buf, ctx)
            }
            fn len(tag: u32, held: &$held) -> usize {
                if *held == <$held>::default() {
                    0
                } else {
                    encoding::$codec::encoded_len(tag, held)
                }
            }
        }
    };
}
scalar!(
    /// `int32`.
    Int32,
    i32,
    int32
);
scalar!(
    /// `int64`.
    Int64,
    i64,
    int64
);
scalar!(
    /// `bool`.
    Bool,
    bool,
    bool
);

/// A scalar whose absence differs from its default.
macro_rules! optional {
    ($(#[$doc:meta])* $name:ident, $held:ty, $codec:ident) => {
        $(#[$doc])*
        pub struct $name;

        impl Field for $name {
            type Held = Option<$held>;
            fn encode(tag: u32, held: &Option<$held>, buf: &mut impl BufMut) {
                if let Some(held) = held {
                    encoding::$codec::encode(tag, held, buf);
                }
            }
            fn merge(
                _: u32,
                wire_type: WireType,
                held: &mut Option<$held>,
                buf: &mut impl Buf,
                ctx: DecodeContext,
            ) -> Result<(), DecodeError> {
                encoding::$codec::merge(wire_type, held.get_or_insert_default(), buf, ctx)
            }
            fn len(tag: u32, held: &Option<$held>) -> usize {
                held.as_ref()
                    .map_or(0, |held| encoding::$codec::encoded_len(tag, held))
            }
        }
    };
}
optional!(
    /// `optional int64`.
    MaybeInt64,
    i64,
    int64
);
optional!(
    /// `optional bool`.
    MaybeBool,
    bool,
    bool
);

/// An instant; Go's zero time is none.
pub struct When;

impl Field for When {
    type Held = Option<Time>;
    fn encode(tag: u32, held: &Option<Time>, buf: &mut impl BufMut) {
        if let Some(time) = held {
            encoding::message::encode(tag, time, buf);
        }
    }
    fn merge(
        _: u32,
        wire_type: WireType,
        held: &mut Option<Time>,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        merge_time(wire_type, held, buf, ctx)
    }
    fn len(tag: u32, held: &Option<Time>) -> usize {
        held.as_ref()
            .map_or(0, |time| encoding::message::encoded_len(tag, time))
    }
}

/// A nested message: in place, or [`Shared`].
pub trait Part: Sized + PartialEq {
    /// What is on the wire.
    type Message: Message;

    /// The message.
    fn message(&self) -> &Self::Message;

    /// Reads it.
    ///
    /// # Errors
    /// Where it is malformed.
    fn merge(
        held: &mut Option<Self>,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError>;
}

impl<M: Message + Default + PartialEq> Part for M {
    type Message = M;
    fn message(&self) -> &M {
        self
    }
    fn merge(
        held: &mut Option<Self>,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        merge(wire_type, held.get_or_insert_default(), buf, ctx)
    }
}

impl<T: Message + Default + PartialEq + 'static> Part for Shared<T> {
    type Message = T;
    fn message(&self) -> &T {
        self
    }
    fn merge(
        held: &mut Option<Self>,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        *held = Some(Self::read(wire_type, buf, ctx)?);
        Ok(())
    }
}

/// A message that may be absent.
pub struct Maybe<P>(std::marker::PhantomData<P>);

impl<P: Part> Field for Maybe<P> {
    type Held = Option<P>;
    fn encode(tag: u32, held: &Option<P>, buf: &mut impl BufMut) {
        if let Some(part) = held {
            encoding::message::encode(tag, part.message(), buf);
        }
    }
    fn merge(
        _: u32,
        wire_type: WireType,
        held: &mut Option<P>,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        P::merge(held, wire_type, buf, ctx)
    }
    fn len(tag: u32, held: &Option<P>) -> usize {
        held.as_ref().map_or(0, |part| {
            encoding::message::encoded_len(tag, part.message())
        })
    }
}

/// Repeated messages.
pub struct Many<P>(std::marker::PhantomData<P>);

impl<P: Part> Field for Many<P> {
    type Held = Vec<P>;
    fn encode(tag: u32, held: &Vec<P>, buf: &mut impl BufMut) {
        for part in held {
            encoding::message::encode(tag, part.message(), buf);
        }
    }
    fn merge(
        tag: u32,
        wire_type: WireType,
        held: &mut Vec<P>,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        merge_many(tag, wire_type, held, buf, ctx)
    }
    fn len(tag: u32, held: &Vec<P>) -> usize {
        held.iter()
            .map(|part| encoding::message::encoded_len(tag, part.message()))
            .sum()
    }
}

/// Repeated messages that few objects have: without any it takes the room of one pointer.
pub struct Few<P>(std::marker::PhantomData<P>);

impl<P: Part> Field for Few<P> {
    // A third of a list's room where there is none.
    type Held = Option<Box<Vec<P>>>;
    fn encode(tag: u32, held: &Self::Held, buf: &mut impl BufMut) {
        if let Some(held) = held {
            Many::<P>::encode(tag, held, buf);
        }
    }
    fn merge(
        tag: u32,
        wire_type: WireType,
        held: &mut Self::Held,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        Many::<P>::merge(tag, wire_type, held.get_or_insert_default(), buf, ctx)
    }
    fn len(tag: u32, held: &Self::Held) -> usize {
        held.as_ref().map_or(0, |held| Many::<P>::len(tag, held))
    }
}

/// A message that is kept where it has any declared field; an empty one becomes none.
pub struct Filled<M>(std::marker::PhantomData<M>);

impl<M: Message + Default + PartialEq + 'static> Field for Filled<M> {
    type Held = Option<Shared<M>>;
    fn encode(tag: u32, held: &Self::Held, buf: &mut impl BufMut) {
        Maybe::<Shared<M>>::encode(tag, held, buf);
    }
    fn merge(
        _: u32,
        wire_type: WireType,
        held: &mut Self::Held,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        let read = Shared::<M>::read(wire_type, buf, ctx)?;
        *held = Some(read).filter(|read| **read != M::default());
        Ok(())
    }
    fn len(tag: u32, held: &Self::Held) -> usize {
        Maybe::<Shared<M>>::len(tag, held)
    }
}

/// Declares a message as a table: the API's number of each field, its name, and its wire type.
macro_rules! message {
    (
        $(#[$doc:meta])*
        pub struct $name:ident {
            $($(#[$field_doc:meta])* $tag:literal $field:ident: $codec:ty,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "camelCase", default, deny_unknown_fields)]
        pub struct $name {
            $(
                $(#[$field_doc])*
                #[serde(skip_serializing_if = "crate::is_default")]
                pub $field: <$codec as $crate::message::Field>::Held,
            )*
        }

        $crate::message::wire! { $name { $($tag $field: $codec,)* } }

        #[cfg(test)]
        impl $name {
            /// Numbers and names of its fields: compared with the .proto files by a test.
            pub(crate) const FIELDS: &'static [(u32, &'static str)] = &[$(($tag, stringify!($field))),*];
        }
    };
}
pub(crate) use message;

/// The wire encoding of such a table, for a message whose JSON differs.
macro_rules! wire {
    ($name:ident { $($tag:literal $field:ident: $codec:ty,)* }) => {
        impl prost::Message for $name {
            fn encode_raw(&self, buf: &mut impl prost::bytes::BufMut) {
                $(<$codec as $crate::message::Field>::encode($tag, &self.$field, buf);)*
            }
            fn merge_field(
                &mut self,
                tag: u32,
                wire_type: prost::encoding::WireType,
                buf: &mut impl prost::bytes::Buf,
                ctx: prost::encoding::DecodeContext,
            ) -> Result<(), prost::DecodeError> {
                match tag {
                    $($tag => <$codec as $crate::message::Field>::merge(tag, wire_type, &mut self.$field, buf, ctx),)*
                    _ => $crate::wire::skip(wire_type, tag, buf, ctx),
                }
            }
            fn encoded_len(&self) -> usize {
                0 $(+ <$codec as $crate::message::Field>::len($tag, &self.$field))*
            }
            fn clear(&mut self) {
                *self = Self::default();
            }
        }
    };
}
pub(crate) use wire;
