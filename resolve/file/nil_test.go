package file

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestInvalidArguments(t *testing.T) {
	assert.PanicsWithValue(t, "file: New: the path is empty", func() { New("") })
}
