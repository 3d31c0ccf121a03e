package file

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

// parseWeight reads a quantity of Kubernetes, as linkerd's controller does it:
// in thousandths, rounded up, of which each is ten units on the wire, so that
// "1" is 10000 and "500m" is 5000.
func parseWeight(text string) (uint32, bool) {
	q, ok := parseQuantity(text)
	if !ok || q.Sign() < 0 {
		return 0, false
	}
	q.Mul(q, big.NewRat(1000, 1))
	thousandths, rest := new(big.Int).QuoRem(q.Num(), q.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		thousandths.Add(thousandths, big.NewInt(1))
	}
	units := thousandths.Mul(thousandths, big.NewInt(10))
	if !units.IsUint64() || units.Uint64() > math.MaxUint32 {
		return 0, false
	}
	return uint32(units.Uint64()), true
}

// parseQuantity reads a decimal number with one of the suffixes of Kubernetes.
func parseQuantity(text string) (*big.Rat, bool) {
	end := len(text) - len(strings.TrimLeft(text, "+-0123456789."))
	digits, suffix := text[:end], text[end:]
	const enough = 40 // an amount of work that nobody's file is worth
	if len(digits) > enough || strings.ContainsAny(strings.TrimLeft(digits[:min(1, end)], "+-")+digits[min(1, end):], "+-") {
		return nil, false
	}
	q, ok := new(big.Rat).SetString(digits)
	if !ok {
		return nil, false
	}
	scale, ok := scaleOf(suffix)
	if !ok {
		return nil, false
	}
	return q.Mul(q, scale), true
}

// scaleOf returns what a suffix stands for: powers of 1000, of 1024, or of ten
// as in "e3".
func scaleOf(suffix string) (*big.Rat, bool) {
	if suffix == "" {
		return power(10, 0), true
	}
	first, rest := suffix[:1], suffix[1:]
	if i := strings.Index("num kMGTPE", first); i >= 0 && i != 3 && rest == "" {
		return power(10, 3*(i-3)), true
	}
	if i := strings.Index("KMGTPE", first); i >= 0 && rest == "i" {
		return power(2, 10*(i+1)), true
	}
	exponent, err := strconv.Atoi(rest)
	if !strings.EqualFold(first, "e") || err != nil || exponent < -30 || exponent > 30 {
		return nil, false
	}
	return power(10, exponent), true
}

func power(base int64, exponent int) *big.Rat {
	abs := max(exponent, -exponent)
	q := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(base), big.NewInt(int64(abs)), nil))
	if exponent < 0 {
		q.Inv(q)
	}
	return q
}
