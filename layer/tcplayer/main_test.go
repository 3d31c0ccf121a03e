package tcplayer_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/gotower/gotower/internal/conformance"
)

func TestMain(m *testing.M) {
	conformance.Shorten()
	goleak.VerifyTestMain(m)
}
