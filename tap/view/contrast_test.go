package view

import (
	"math"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Texts have enough contrast, light and dark.
func TestContrast(t *testing.T) {
	css, err := files.ReadFile("page/page.css")
	require.NoError(t, err)
	colours := map[string][]string{}
	for _, m := range regexp.MustCompile(`--([a-z0-9-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)`).FindAllStringSubmatch(string(css), -1) {
		colours[m[1]] = m[2:]
	}
	luminance := func(colour string) (sum float64) {
		for i, weight := range []float64{0.2126, 0.7152, 0.0722} { // WCAG 2.1, relative luminance
			n, err := strconv.ParseUint(colour[1+2*i:3+2*i], 16, 8)
			require.NoError(t, err)
			c := float64(n) / 255
			if c <= 0.04045 {
				c /= 12.92
			} else {
				c = math.Pow((c+0.055)/1.055, 2.4)
			}
			sum += weight * c
		}
		return sum
	}
	for _, text := range []string{"text", "soft", "accent", "bad", "warn", "good", "p50", "p95", "p99"} {
		for _, ground := range []string{"ground", "panel", "raised", "mark", "bad-ground"} {
			for i, theme := range []string{"light", "dark"} {
				require.Len(t, colours[text], 2, text)
				a, b := luminance(colours[text][i]), luminance(colours[ground][i])
				assert.GreaterOrEqual(t, (max(a, b)+0.05)/(min(a, b)+0.05), 4.5, "%s: %s on %s", theme, text, ground)
			}
		}
	}
}
