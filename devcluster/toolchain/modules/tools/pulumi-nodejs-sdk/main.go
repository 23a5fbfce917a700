// Command pulumi-nodejs-sdk writes the TypeScript SDK of a package: `pulumi-nodejs-sdk SCHEMA DIRECTORY`.
//
// It does the same as `pulumi package gen-sdk --language nodejs` with the language host of the same
// release. The newest host that is available as a module is older. Built with Go 1.26, in which
// filepath.Rel behaves differently, it generates wrong imports.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/blang/semver"
	"github.com/pulumi/pulumi/pkg/v3/codegen/nodejs"
	"github.com/pulumi/pulumi/pkg/v3/codegen/schema"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: pulumi-nodejs-sdk SCHEMA DIRECTORY")
	}
	if err := generate(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

// noLoader is the loader for a package whose schema refers to no other package.
type noLoader struct{}

func (noLoader) LoadPackage(name string, _ *semver.Version) (*schema.Package, error) {
	return nil, fmt.Errorf("the schema refers to another package, %s", name)
}

func (noLoader) LoadPackageV2(
	_ context.Context, other *schema.PackageDescriptor,
) (*schema.Package, error) {
	return nil, fmt.Errorf("the schema refers to another package, %s", other.Name)
}

func generate(schemaFile, directory string) error {
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		return err
	}
	var spec schema.PackageSpec
	if err := json.Unmarshal(text, &spec); err != nil {
		return err
	}
	pkg, problems, err := schema.BindSpec(spec, noLoader{}, schema.ValidationOptions{})
	if err != nil {
		return err
	}
	if problems.HasErrors() {
		return problems
	}
	files, err := nodejs.GeneratePackage("pulumi", pkg, nil, nil, false, nil)
	if err != nil {
		return err
	}
	for name, content := range files {
		path := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
