package file_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/profiles/file"
)

// Methods are converted to upper case, as in a ServiceProfile.
func TestMethodCase(t *testing.T) {
	match := func(methods string) profiles.Match {
		set, err := file.Parse("web.yaml", []byte("target: web\nroutes:\n- {match: {method: "+methods+"}}"))
		require.NoError(t, err)
		return set.Profile("web:80").Routes[0].Match
	}
	require.Equal(t, match("[GET, HEAD]"), match("[get, Head]"))
}
