package kitlayer_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/layer"
)

// assertFilled fails when an instrument of the layers is missing in the
// provider.
func assertFilled(t *testing.T, i layer.Instruments) {
	t.Helper()
	v := reflect.ValueOf(i)
	for n := range v.NumField() {
		assert.False(t, v.Field(n).IsNil(), v.Type().Field(n).Name)
	}
}
