package check

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The hints name the namespace of the control plane.
func TestHintNamespace(t *testing.T) {
	c := &checker{Options: Options{Namespace: "mesh"}}
	for _, category := range []category{c.existence(), c.configuration(), c.identity(), c.webhooks()} {
		for _, check := range category.checks {
			require.NotContains(t, check.hint, "-n linkerd", check.description)
		}
	}
}
