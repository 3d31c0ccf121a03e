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

	tree := follow.Tree[string]{
		Path: path, Max: 1000,
		Parse: func(_ string, data []byte) (string, error) { return string(data), nil },
	}
	for view := range follow.NewPoller(time.Second, tree.Look).States(context.Background()) {
		for _, f := range view.Files {
			fmt.Println(filepath.Base(f.Path), f.Good.Value)
		}
		break // it would wait for a change of the file
	}
	// Output: greeting hello
}
