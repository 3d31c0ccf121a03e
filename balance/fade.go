package balance

import "math"

// fading is how fast what is known of an endpoint becomes what is usual.
type fading struct {
	halvings float32 // a tick
	fresh    uint32  // in ticks
	// Of what is fresh, age · (slope − age · bend) is lost: of the parabolas with 0
	// at 0 the one whose greatest error is the least.
	slope, bend float32
}

// newFading returns that of a decay in ticks.
func newFading(decay float64) fading {
	const fresh, most = 0.375, 1 << 30 // halvings, ticks
	h := math.Log2E / decay
	return fading{float32(h), uint32(min(fresh/h, most)), float32(0.689955 * h), float32(0.212812 * h * h)}
}

// after is what remains of a latency at an age in ticks, and which part of it
// that is, to within 2·10⁻⁴. Estimates of endpoints in use are fresh, as a rule.
func (f *fading) after(age, latency, usual float32) (now, left float32) {
	if age <= float32(f.fresh) {
		lost := age * (f.slope - age*f.bend)
		return latency - (latency-usual)*lost, 1 - lost
	}
	left = halved(age * f.halvings)
	return latency*left + usual*(1-left), left
}

// halved returns 2^(−x) for x ≥ 0, to within 2·10⁻⁴: the power of two by its bits,
// what is left by a polynomial from −½ to ½, the least squares with 1 at 0, and
// twice as much at −½ as at ½. A float32 as large as toWhole has no bits for a
// fraction, and so the nearest whole number in its last ones.
func halved(x float32) float32 {
	const toWhole = 3 << 22
	if x >= 120 {
		return 0
	}
	whole := x + toWhole
	part := x - (whole - toWhole)
	p := 1 - part*(0.6933015-part*(0.2419323-part*0.0547488))
	return math.Float32frombits(math.Float32bits(p) - math.Float32bits(whole)<<23)
}
