//! Paged attention for short query blocks over long contexts, bit-equal for any number of rows.
