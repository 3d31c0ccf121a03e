package messages

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// full selects the full number of cases.
var full = os.Getenv("GOTOWER_TESTS") == "full"
