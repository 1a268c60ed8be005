//! The one argmax rule: fp32, ties to the smallest id, NaN never wins.

/// The index of the largest value, or `None` if there is nothing but NaN.
///
/// `-inf` can win only where nothing else is there; masked ids must be left out by the caller.
pub fn argmax(values: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (id, &value) in values.iter().enumerate() {
        if value.is_nan() {
            continue;
        }
        if best.is_none_or(|(_, b)| value > b) {
            best = Some((id, value));
        }
    }
    best.map(|(id, _)| id)
}

#[cfg(test)]
mod tests {
    use super::argmax;

    #[test]
    fn ties_nan_and_infinities() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        assert_eq!(argmax(&[1.0, 3.0, 3.0]), Some(1));
        assert_eq!(argmax(&[nan, 2.0, nan, 5.0]), Some(3));
        assert_eq!(argmax(&[-inf, -inf]), Some(0));
        assert_eq!(argmax(&[0.0, -0.0]), Some(0));
        assert_eq!(argmax(&[-0.0, 0.0]), Some(0));
        assert_eq!(argmax(&[inf, inf, nan]), Some(0));
        assert_eq!(argmax(&[nan]), None);
        assert_eq!(argmax(&[]), None);
    }
}
