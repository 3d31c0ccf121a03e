package file_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/profiles/file"
)

// A method in small letters is the one in capitals, as it is in a ServiceProfile.
func TestMethodsAreInCapitals(t *testing.T) {
	match := func(methods string) profiles.Match {
		set, err := file.Parse("web.yaml", []byte("target: web\nroutes:\n- {match: {method: "+methods+"}}"))
		require.NoError(t, err)
		return set.Profile("web:80").Routes[0].Match
	}
	require.Equal(t, match("[GET, HEAD]"), match("[get, Head]"))
}
