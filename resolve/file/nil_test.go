package file

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInvalidArguments(t *testing.T) {
	require.NotNil(t, New("web.yaml", nil))
	for want, f := range map[string]func(){
		"file: New: the path is empty":                      func() { New("") },
		"file: WithPollInterval: -1ns must not be negative": func() { WithPollInterval(-1) },
	} {
		assert.PanicsWithValue(t, want, f)
	}
}
