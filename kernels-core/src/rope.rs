//! The rotary table: angles in f64, stored in fp32, one for all users.

/// `[positions, rotary]`: the cosines of the `rotary / 2` frequencies, then their sines.
///
/// Frequency j is `theta^(-2j / rotary)`; pair (j, j + rotary / 2) is rotated by `position * frequency`.
pub fn table(theta: f64, rotary: usize, positions: usize) -> Vec<f32> {
    let half = rotary / 2;
    let frequencies: Vec<f64> =
        (0..half).map(|j| libm::pow(theta, -2.0 * j as f64 / rotary as f64)).collect();
    let mut table = Vec::with_capacity(positions * rotary);
    for position in 0..positions {
        let angle = |f: &f64| position as f64 * f;
        table.extend(frequencies.iter().map(|f| libm::cos(angle(f)) as f32));
        table.extend(frequencies.iter().map(|f| libm::sin(angle(f)) as f32));
    }
    table
}

/// Rotates the first `row.len() == rotary` elements of a head by one row of the [`table`].
///
/// Each output is one product and one fused multiply-add, in this order on every backend.
#[inline(always)]
pub fn rotate(row: &mut [f32], table_row: &[f32]) {
    let half = row.len() / 2;
    let (cos, sin) = table_row.split_at(half);
    let (low, high) = row.split_at_mut(half);
    for j in 0..half {
        let (a, b) = (low[j], high[j]);
        low[j] = (-b).mul_add(sin[j], a * cos[j]);
        high[j] = a.mul_add(sin[j], b * cos[j]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotates_in_the_plane_of_each_pair() {
        let t = table(1e7, 8, 5);
        let mut row: Vec<f32> = (1..=8).map(|x| x as f32).collect();
        let before = row.clone();
        rotate(&mut row, &t[4 * 8..]);
        for j in 0..4 {
            let angle = 4.0 * 1e7f64.powf(-(j as f64) / 4.0);
            let (a, b) = (f64::from(before[j]), f64::from(before[j + 4]));
            assert!((f64::from(row[j]) - (a * angle.cos() - b * angle.sin())).abs() < 1e-5);
            assert!((f64::from(row[j + 4]) - (b * angle.cos() + a * angle.sin())).abs() < 1e-5);
        }
    }
}
