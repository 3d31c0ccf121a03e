package dns

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNilOption(t *testing.T) { require.NotNil(t, New(nil)) }
