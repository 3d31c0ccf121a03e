package ca

import (
	"bytes"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
)

// TokenFile lets those have any name who show the token that is in a file. It is
// read for each request.
func TokenFile(path string) Check {
	return func(name string, token []byte) error {
		if err := compare(path, token); err != nil {
			return fmt.Errorf("%q is not certified: %w", name, err)
		}
		return nil
	}
}

// TokenDir lets those have a name who show the token that is in the file of that
// name in dir; see [TokenName]. It is read for each request.
func TokenDir(dir string) Check {
	return func(name string, token []byte) error {
		if err := compare(filepath.Join(dir, TokenName(name)), token); err != nil {
			return fmt.Errorf("%q is not certified: %w", name, err)
		}
		return nil
	}
}

// TokenName is what the file for a name is called: as the name, with all of a
// URI escaped that no file can be called.
func TokenName(name string) string { return url.PathEscape(name) }

// compare does not take longer for a token that is nearly right. White space
// around it counts for nothing: people write such files with editors.
func compare(path string, token []byte) error {
	want, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errors.New("there is no token for it here")
	case err != nil:
		return errors.New("its token cannot be read here")
	}
	want, token = bytes.TrimSpace(want), bytes.TrimSpace(token)
	switch {
	case len(want) == 0:
		return errors.New("its token is empty here")
	case subtle.ConstantTimeCompare(want, token) != 1:
		return errors.New("the token is not the one for it")
	}
	return nil
}
