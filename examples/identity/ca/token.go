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

// TokenFile returns a Check that accepts the token in a file, for any name. The file is
// read for each request.
func TokenFile(path string) Check {
	return func(name string, token []byte) error {
		if err := compare(path, token); err != nil {
			return fmt.Errorf("%q is not certified: %w", name, err)
		}
		return nil
	}
}

// TokenDir returns a Check that accepts for a name the token in the file of that name
// in dir, see [TokenName]. The file is read for each request.
func TokenDir(dir string) Check {
	return func(name string, token []byte) error {
		if err := compare(filepath.Join(dir, TokenName(name)), token); err != nil {
			return fmt.Errorf("%q is not certified: %w", name, err)
		}
		return nil
	}
}

// TokenName returns the file name for a name. In a URI, characters that a file name cannot
// have are escaped.
func TokenName(name string) string { return url.PathEscape(name) }

// compare returns an error unless token equals the content of the file at path. It
// ignores surrounding white space and takes constant time.
func compare(path string, token []byte) error {
	want, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errors.New("no token is stored for it")
	case err != nil:
		return errors.New("its stored token cannot be read")
	}
	want, token = bytes.TrimSpace(want), bytes.TrimSpace(token)
	switch {
	case len(want) == 0:
		return errors.New("its stored token is empty")
	case subtle.ConstantTimeCompare(want, token) != 1:
		return errors.New("the token does not match")
	}
	return nil
}
