//! The canvas: colours, glyphs and PNG encoding. Does not depend on tensors.

use std::collections::HashMap;
use std::convert::Infallible;

use ab_glyph::{Font, FontRef, PxScale, ScaleFont, point};
use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, VPos};
use plotters_backend::{BackendColor, BackendCoord, BackendTextStyle, DrawingBackend, DrawingErrorKind};

/// Size of every picture in bytes.
pub const PNG_LEN: usize = 256 << 10;

/// Why a picture cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CanvasError {
    /// The drawing failed.
    #[error("the picture cannot be drawn: {0}")]
    Draw(String),
    /// The encoding failed.
    #[error("the picture cannot be encoded: {0}")]
    Encode(#[from] png::EncodingError),
    /// The picture is larger than [`PNG_LEN`].
    #[error("the picture takes {len} bytes; at most {PNG_LEN} are possible")]
    TooLarge {
        /// Its size in bytes.
        len: usize,
    },
}

pub(super) const WIDTH: u32 = 1320;
pub(super) const HEIGHT: u32 = 720;

pub(super) const INK: RGBColor = RGBColor(32, 36, 44);
pub(super) const WHITE: RGBColor = RGBColor(255, 255, 255);
pub(super) const BAR: RGBColor = RGBColor(70, 118, 172);
pub(super) const BAND: RGBColor = RGBColor(176, 201, 229);
pub(super) const NAN: RGBColor = RGBColor(0, 0, 0);
pub(super) const INF: RGBColor = RGBColor(70, 190, 30);

/// The colour scale: blue, white, red, in equal steps.
const RAMP: [RGBColor; 5] = [
    RGBColor(20, 66, 144),
    RGBColor(118, 170, 218),
    RGBColor(248, 248, 248),
    RGBColor(240, 146, 120),
    RGBColor(164, 16, 40),
];
/// Number of colours of the scale on each side of white.
const STEPS: i32 = 100;
/// Number of greys from ink to white, used for text.
const GREYS: u8 = 48;

/// The colour of a number from -1 to 1; others are clamped.
pub(super) fn ramp(value: f64) -> RGBColor {
    let at = (value * f64::from(STEPS)).round().clamp(-f64::from(STEPS), f64::from(STEPS));
    let at = (at / f64::from(STEPS) + 1.0) * 2.0;
    let from = (at as usize).min(3);
    mix(RAMP[from], RAMP[from + 1], at - from as f64)
}

/// The grey between ink (0) and white (1).
pub(super) fn grey(share: f64) -> RGBColor {
    mix(INK, WHITE, share)
}

fn mix(from: RGBColor, to: RGBColor, share: f64) -> RGBColor {
    let mix = |from: u8, to: u8| (f64::from(from) + (f64::from(to) - f64::from(from)) * share).round() as u8;
    RGBColor(mix(from.0, to.0), mix(from.1, to.1), mix(from.2, to.2))
}

/// All colours of a picture.
fn palette() -> Vec<RGBColor> {
    let greys = (0..GREYS).map(|at| grey(f64::from(at) / f64::from(GREYS - 1)));
    let ramp = (-STEPS..=STEPS).map(|at| ramp(f64::from(at) / f64::from(STEPS)));
    greys.chain(ramp).chain([BAR, BAND, NAN, INF]).collect()
}

/// The font of all text.
pub(super) struct FontFace(FontRef<'static>);

impl FontFace {
    pub(super) fn new() -> Result<Self, CanvasError> {
        FontRef::try_from_slice(ttf_noto_sans::REGULAR).map(Self).map_err(|error| CanvasError::Draw(error.to_string()))
    }

    /// Whether the font can show `char`.
    pub(super) fn has(&self, char: char) -> bool {
        self.0.glyph_id(char).0 != 0
    }

    /// Width of `text` in pixels.
    pub(super) fn width(&self, text: &str, size: f64) -> f64 {
        let mut end = 0.0;
        self.layout(text, size, |_, _, next| end = next);
        f64::from(end)
    }

    /// Calls `each` with every glyph, its start and its end in pixels.
    fn layout(&self, text: &str, size: f64, mut each: impl FnMut(ab_glyph::GlyphId, f32, f32)) {
        let font = self.0.as_scaled(PxScale::from(size as f32));
        let (mut at, mut before) = (0.0, None);
        for char in text.chars() {
            let glyph = font.glyph_id(char);
            at += before.map_or(0.0, |before| font.kern(before, glyph));
            let next = at + font.h_advance(glyph);
            each(glyph, at, next);
            (at, before) = (next, Some(glyph));
        }
    }
}

/// An image with a palette on which plotters draws.
pub(super) struct Canvas<'a> {
    face: &'a FontFace,
    pixels: &'a mut [u8],
    palette: Vec<RGBColor>,
    /// Cache: the nearest colour of the palette, as an index, for each colour drawn so far.
    nearest: HashMap<(u8, u8, u8), u8>,
}

/// The pixels of an empty canvas.
pub(super) fn blank() -> Vec<u8> {
    vec![GREYS - 1; (WIDTH * HEIGHT) as usize]
}

impl<'a> Canvas<'a> {
    /// Draws on `pixels`, which [`blank`] has created.
    pub(super) fn new(face: &'a FontFace, pixels: &'a mut [u8]) -> Self {
        Self { face, pixels, palette: palette(), nearest: HashMap::new() }
    }
}

impl DrawingBackend for Canvas<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        (WIDTH, HEIGHT)
    }

    fn ensure_prepared(&mut self) -> Result<(), DrawingErrorKind<Infallible>> {
        Ok(())
    }

    fn present(&mut self) -> Result<(), DrawingErrorKind<Infallible>> {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, color: BackendColor) -> Result<(), DrawingErrorKind<Infallible>> {
        let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y)) else { return Ok(()) };
        if x >= WIDTH || y >= HEIGHT {
            return Ok(());
        }
        let pixel = &mut self.pixels[(y * WIDTH + x) as usize];
        let (red, green, blue) = color.rgb;
        let RGBColor(red, green, blue) =
            mix(self.palette[usize::from(*pixel)], RGBColor(red, green, blue), color.alpha);
        *pixel = *self.nearest.entry((red, green, blue)).or_insert_with(|| {
            let far = |a: u8, b: u8| (i32::from(a) - i32::from(b)).pow(2);
            let best =
                self.palette.iter().zip(0..).min_by_key(|(c, _)| far(c.0, red) + far(c.1, green) + far(c.2, blue));
            best.map_or(0, |(_, at)| at)
        });
        Ok(())
    }

    /// Replaces the default of plotters, which places letters at whole pixels.
    fn draw_text<S: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &S,
        (left, top): BackendCoord,
    ) -> Result<(), DrawingErrorKind<Infallible>> {
        let face = self.face;
        let font = face.0.as_scaled(PxScale::from(style.size() as f32));
        let width = face.width(text, style.size()) as f32;
        let across = match style.anchor().h_pos {
            HPos::Left => 0.0,
            HPos::Center => -width / 2.0,
            HPos::Right => -width,
        };
        let down = match style.anchor().v_pos {
            VPos::Top => 0.0,
            VPos::Center => -font.height() / 2.0,
            VPos::Bottom => -font.height(),
        };
        // A baseline between two pixels would blur every letter.
        let base = (down + font.ascent()).round();
        let (turn, color) = (style.transform(), style.color());
        face.layout(text, style.size(), |glyph, at, _| {
            let glyph = glyph.with_scale_and_position(font.scale(), point(across + at, base));
            let Some(outline) = font.outline_glyph(glyph) else { return };
            let corner = outline.px_bounds().min;
            outline.draw(|x, y, coverage| {
                let (x, y) = turn.transform(corner.x as i32 + x as i32, corner.y as i32 + y as i32);
                let color = BackendColor { alpha: color.alpha * f64::from(coverage.min(1.0)), ..color };
                _ = self.draw_pixel((left + x, top + y), color);
            });
        });
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        Ok((self.face.width(text, style.size()).ceil() as u32, style.size().ceil() as u32))
    }
}

/// The picture as a PNG file of [`PNG_LEN`] bytes.
pub(super) fn encode_png(pixels: &[u8]) -> Result<Vec<u8>, CanvasError> {
    let mut file = Vec::with_capacity(PNG_LEN);
    let mut encoder = png::Encoder::new(&mut file, WIDTH, HEIGHT);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette(palette().iter().flat_map(|color| [color.0, color.1, color.2]).collect::<Vec<u8>>());
    encoder.set_compression(png::Compression::Balanced);
    encoder.set_filter(png::Filter::NoFilter);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;

    // A padding chunk (length, type, content and checksum) is inserted before the last chunk, IEND. The lower-case
    // letters of its type mark it as ancillary and private.
    let end = file.split_off(file.len().saturating_sub(12));
    let len = file.len() + end.len();
    let padding = PNG_LEN.checked_sub(len + 12).ok_or(CanvasError::TooLarge { len })?;
    let mut chunk = b"wfPd".to_vec();
    chunk.resize(4 + padding, 0);
    file.extend((padding as u32).to_be_bytes());
    file.extend(&chunk);
    file.extend(crc32fast::hash(&chunk).to_be_bytes());
    file.extend(end);
    Ok(file)
}
