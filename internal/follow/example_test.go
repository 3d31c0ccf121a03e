package follow_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gotower/gotower/internal/follow"
)

func Example() {
	dir, err := os.MkdirTemp("", "follow")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "greeting")
	if err := os.WriteFile(path, []byte("hello"), 0o600); err != nil {
		fmt.Println(err)
		return
	}

	f := follow.File[string]{
		Path: path, Max: 1000,
		Parse: func(_ string, data []byte) (string, error) { return string(data), nil },
	}
	for seen := range follow.NewPoller(time.Second, f.Look).States(context.Background()) {
		fmt.Println(seen.Good.Value)
		break // it would wait for a change of the file
	}
	// Output: hello
}
