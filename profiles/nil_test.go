package profiles_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/profiles"
)

func TestNewPanicsOnNilArguments(t *testing.T) {
	mk := new(backends).mk
	for want, construct := range map[string]func(){
		"profiles: New: nil Source":      func() { profiles.New(t.Context(), profiles.Config{Target: target, Source: nil}, access{}, mk) },
		"profiles: New: nil Accessor":    func() { profiles.New(t.Context(), profiles.Config{Target: target, Source: newScript()}, nil, mk) },
		"profiles: New: nil MakeService": func() { profiles.New(t.Context(), profiles.Config{Target: target, Source: newScript()}, access{}, nil) },
	} {
		require.PanicsWithValue(t, want, construct)
	}
}
