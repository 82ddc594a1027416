# The front door. `make demo` and `make test` set themselves up; everything else expects what they installed.
#
#   make                build/release/nibble
#   make demo           install what is missing, build, and hear a story; STORY="..." SEED=n TEMPERATURE=t ask for another
#   make test           install what is missing, build and run the tests (about 15 minutes on 2 cores)
#   make test-sanitized the same, and with sanitizers, watched kernels and fuzzers, as CI runs it (as long again)
#   make test-extended  what takes longer, with its results in docs/internals/test-extended.md
#   make check          the inner loop: build what changed, fast tests, format, layers
#   make layers         the layer check alone
#   make tidy           clang-tidy over every source (an hour on 2 cores)
#   make format         format the C++ sources
#   make cuda           build/cuda/nibble, which runs on a Hopper GPU too (the CUDA 13 toolkit must be there)
#   make device-test    build the device code, test and time it on this machine's GPU, and record that in docs/device
#   make device-record-check   does the newest record speak of this device code?
#   make install        to PREFIX (/usr/local), under DESTDIR if set
#   make deb            build/deb/nibble_VERSION_ARCH.deb: program, demo model, man pages, completions, systemd unit
#   make image          a container image, by podman or docker, of the Containerfile; IMAGE=name:tag
#   make bundle         the stripped program and test programs in build/bundle; with the toolkit also those for a
#                       GPU in build/device_bundle
#   make clean          remove build/

PREFIX ?= /usr/local
# Of these the model makes a whole story. The same prompt, seed and temperature tell the same story on every CPU.
STORY = Tell me a story about a girl named Lily who helps a lost puppy
SEED = 14
TEMPERATURE = 0.4
IMAGE = nibble:latest

.PHONY: nibble cuda demo test test-sanitized test-extended check layers tidy format device-test device-record-check install deb image bundle clean
.DEFAULT_GOAL := nibble

# Built without its tests until something asks for them, so that nibble alone needs fewer packages.
build/release/build.ninja:
	@cmake --preset release -DNIBBLE_TESTS=OFF -DNIBBLE_BENCHMARKS=OFF -DNIBBLE_WERROR=OFF

nibble: build/release/build.ninja
	@cmake --build build/release --target nibble

demo:
	@tools/setup.sh build
	@$(MAKE) --no-print-directory nibble
	build/release/nibble generate demo --chat --temperature $(TEMPERATURE) --seed $(SEED) --max-tokens 600 --prompt "$(STORY)"

test:
	@tools/setup.sh build test optional --python
	@tools/run_tests.py

test-sanitized:
	@tools/setup.sh build test optional --python
	@tools/run_tests.py --sanitized

test-extended:
	@tools/setup.sh build test optional extended --python
	@tools/run_tests.py --extended --record docs/internals/test-extended.md

check:
	@tools/run_tests.py --check

layers:
	@tools/layers.py

tidy:
	@tools/tidy.sh

format:
	@tools/format.sh

cuda:
	@cmake --preset cuda -DNIBBLE_TESTS=OFF -DNIBBLE_BENCHMARKS=OFF -DNIBBLE_WERROR=OFF
	@cmake --build build/cuda --target nibble

device-test:
	@cmake --preset cuda -DNIBBLE_TESTS=ON >/dev/null
	@cmake --build build/cuda --target device_programs
	@tools/device_record.py run build/cuda/src/ops

device-record-check:
	@tools/device_record.py check

install: nibble
	@DESTDIR="$(DESTDIR)" cmake --install build/release --prefix "$(PREFIX)" --strip

deb:
	@tools/setup.sh build package
	@$(MAKE) --no-print-directory nibble
	@tools/make_deb.sh

image:
	@tools/make_image.sh "$(IMAGE)"

bundle:
	@tools/bundle.sh
	@if command -v nvcc >/dev/null; then tools/device_bundle.sh; fi

clean:
	rm -rf build
